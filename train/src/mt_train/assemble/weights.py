"""The sources of a model's weights: a checkpoint, the weights that the config names, an overlay, or the seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from os.path import expanduser
from pathlib import Path
from typing import Any

from torch import Tensor

from mt_core.adapters.base import Adapter
from mt_core.errors import CheckpointError, WeightsError, show_value
from mt_core.groups import is_of_media
from mt_core.nn import TrainModel
from mt_core.nn.objective import split_objective_name
from mt_train.adapters.folder import AdapterFolder
from mt_train.assemble.base_files import adapter_folder, base_files, check_base_of, first_adapter, without_gone
from mt_train.assemble.expert_forms import fit_experts
from mt_train.assemble.media import media_weights
from mt_train.assemble.merging import AdapterPlacement, merged_weights, other_weights
from mt_train.assemble.objective_files import read_objective
from mt_train.assemble.parts import Parts
from mt_train.checkpoint.manifest import read_manifest
from mt_train.checkpoint.tensors import open_model, open_overlay
from mt_train.config.run import ModelRef
from mt_train.engine.build import TensorSource
from mt_train.engine.meta import on_meta
from mt_train.engine.new_rows import NewRows
from mt_train.engine.snapshot import read_callback_tensors
from mt_train.plugins.hub import folder_of
from mt_train.plugins.saved_adapter import SavedAdapter

Say = Callable[[str], None]


def weights_of(
    parts: Parts, names: list[str], say: Say, checkpoint: Path | None = None, *, adapted: bool = False
) -> TensorSource:
    """The values of these parameters; one that has no value here is drawn from (seed, name).

    ``adapted``: an adapter comes later, and what is left over may be its own (``adapter_weights`` looks).

    Raises ``CheckpointError`` for a checkpoint of another model, or one without the frozen weights that it was trained on.
    """
    if checkpoint is None:
        found = pretrained_values(parts, parts.config.model, names, say, adapted=adapted)
        return {**found, **_base_part(parts, names, found, say)}
    saved = fit_experts(parts, open_model(checkpoint / "model"), names)
    base = read_manifest(checkpoint).get("base")
    own = names if not adapted else list(saved)  # what is left over is looked at once the adapter is there
    _check_checkpoint(saved, names, known=own, whole=base is None)
    if base is None:
        return saved
    _check_base(base, base_files(parts))
    return {
        **pretrained_values(parts, without_gone(parts.config.model), names, lambda text: None, adapted=adapted),
        **saved,
    }


def adapter_weights(
    parts: Parts, model: TrainModel, adapter: Adapter, base: list[str], own: list[str], checkpoint: Path | None
) -> TensorSource:
    """Return the values that a checkpoint, or what the run trains on from, has of parameters that the adapter has brought (``own``).

    Raises ``CheckpointError`` for a checkpoint that lacks some or has others, ``WeightsError`` for such a folder.
    """
    found: TensorSource
    folder = first_adapter(parts) if checkpoint is None else None
    if folder is not None:
        check_base_of(folder, parts)
        run = parts.config.adapter.method()
        found = folder.for_model(adapter, model, run=run, stated=is_stated(folder, parts))
        _check_overlay(str(folder.path), found, [*base, *own])
    elif checkpoint is None:
        found = fit_experts(parts, _overlay(parts.config.model.source.overlay), [*base, *own])
        _check_overlay(parts.config.model.source.overlay, found, [*base, *own])
    else:
        found = open_model(checkpoint / "model")
        _check_checkpoint(found, own, known=[*base, *own])
    return {name: found[name] for name in own if name in found}


def _base_part(parts: Parts, names: list[str], source: TensorSource, say: Say) -> TensorSource:
    """Return the weights of the model itself that ``adapter.weights`` holds: those that its adapter has rewritten, or trained too."""
    if parts.config.adapter.source.weights is None:
        return {}
    folder = first_adapter(parts)
    assert folder is not None, "its folder has been opened"
    saved = SavedAdapter(folder, parts.offers["adapter"], parts.config.adapter.options)
    placed = AdapterPlacement.of(saved, parts, is_stated=is_stated(folder, parts))
    if placed.differs_from(source, parts.config.train.seed):
        raise other_weights(saved)
    say(f"adapter {folder.path} ({saved.component.name}): its values are where this begins")
    known = placed.base_names & set(names)
    beside = read_objective(folder.path, names)
    return {**beside, **{name: load for name, load in placed.tensors.items() if name in known}}


def is_stated(folder: AdapterFolder, parts: Parts) -> bool:
    """Return whether the run's adapter is what the folder says, so that nobody has to have typed its options."""
    slot = parts.config.adapter
    return folder.states(parts.adapter_component, slot.options, slot.method())


def averaged_of(checkpoint: Path | None, name: str) -> TensorSource:
    """The averaged weights that a callback keeps in a checkpoint. Raises ``CheckpointError`` where it keeps none."""
    kept = {} if checkpoint is None else read_callback_tensors(checkpoint)
    if not kept.get(name):
        known = ", ".join(key for key, tensors in kept.items() if tensors) or "none"
        raise CheckpointError(
            f"{checkpoint or 'weights that are no checkpoint'} has no averaged weights named {show_value(name)}; there are: {known}."
            " Train with --callbacks ema or swa"
        )
    return kept[name]


def _check_base(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise ``CheckpointError`` unless the weights under trained ones are those that they were trained on."""
    if changed := sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name)):
        raise CheckpointError(
            f"the checkpoint holds trained weights only, and the weights under them have changed since: {', '.join(changed)}."
            " Put the files back that the run was started with"
        )


def pretrained_values(
    parts: Parts, model: ModelRef, names: list[str], say: Say, *, adapted: bool = False
) -> TensorSource:
    """Return the values that ``model.weights`` and ``model.overlay`` hold for these parameters; the overlay wins.

    ``model.adapters`` are merged into them, but for an overlay that is the run's own adapter, which stands over all.

    Raises ``WeightsError`` with every name that is missing or left over and not allowed by a pattern.
    """
    source: dict[str, Callable[[], Tensor]] = {}
    if model.source.weights is not None:
        assert parts.weights_format is not None, "resolve() finds the format"
        assert parts.weights_path is not None, "and the weights"
        found = parts.weights_format.tensors(parts.weights_path, model.options)
        found = fit_experts(parts, _with_objective(parts.weights_path, found, names), names)
        drawn = {
            name
            for name in names
            if is_of_media(name) or _may_lack(name, names, own_head=parts.objective_component.head == "own")
        }
        wanted = [name for name in names if name in found or name not in drawn]
        source = check_names(found, wanted, model.source.allow_missing, model.source.allow_unexpected, say)
        source = _with_new_rows(parts, model, source, say)
    source = {**media_weights(parts, set(names)), **source}
    known, overlay = set(names), fit_experts(parts, _overlay(model.source.overlay), names)
    if not adapted:
        _check_overlay(model.source.overlay, overlay, names)
    if model.source.overlay is not None:
        say(f"overlay {model.source.overlay}: {len(overlay)} tensors replace or complete the weights")
    over = {name: load for name, load in overlay.items() if name in known}
    if adapter_folder(model.source.overlay) is not None:
        return {**merged_weights(parts, source, known, say), **over}
    return merged_weights(parts, source | over, known, say)


def _with_objective(path: Path, found: TensorSource, names: list[str]) -> TensorSource:
    """The tensors, where those of the objective's modules may have the names that these have by themselves, as ``score.weight``, or lie
    in a file beside the weights."""
    own = {split[1]: name for name in names if (split := split_objective_name(name))}
    beside = read_objective(folder_of(path), names)
    return {**beside, **{own.get(name, name): load for name, load in found.items()}}


def _may_lack(name: str, names: list[str], *, own_head: bool) -> bool:
    """Return whether weights need not have a parameter: one of the objective's, or of the language head where nothing calls that."""
    heads = {split[0] for each in names if (split := split_objective_name(each))}
    of_head = any(name.startswith(f"{head}.") for head in heads)
    return split_objective_name(name) is not None or (own_head and of_head)


def _overlay(path: str | None) -> TensorSource:
    """Return the tensors of an overlay."""
    folder = adapter_folder(path)
    return {} if path is None else open_overlay(Path(expanduser(path))) if folder is None else folder.tensors()


def _check_overlay(path: str | None, overlay: TensorSource, known: list[str]) -> None:
    """Raise ``WeightsError`` for a tensor that is not known."""
    if unknown := sorted(set(overlay) - set(known)):
        raise WeightsError(f"the overlay {path} holds tensors that the model lacks: {', '.join(unknown)}")


def _with_new_rows(
    parts: Parts, model: ModelRef, source: dict[str, Callable[[], Tensor]], say: Say
) -> dict[str, Callable[[], Tensor]]:
    """Embedding and head with rows for the tokens that the tokenizer's config adds, if it does."""
    if not parts.adds_tokens:
        return source
    tokenizer: Any = parts.tokenizer  # with ``added`` and ``init``, as a component that adds tokens promises
    if not tokenizer.added:
        return source
    rows = NewRows(
        added=tokenizer.added, size=model.options.vocab_size, init=tokenizer.init, seed=parts.config.train.seed
    )
    grown = [name for name in per_token_names(parts, model) if name in source]
    say(f"notice: {len(tokenizer.added)} tokens are new; their rows in {', '.join(grown)} begin as {tokenizer.init}")
    return source | {name: rows.put(name, source[name]) for name in grown}


def per_token_names(parts: Parts, model: ModelRef) -> list[str]:
    """The parameters that have a row for each token: those that are larger in a model with more tokens."""
    shapes = []
    for more in (0, 1):
        options = model.options.model_copy(update={"vocab_size": model.options.vocab_size + more})
        with on_meta():
            built = parts.model(options)
        shapes.append({name: parameter.shape for name, parameter in built.named_parameters()})
    return [name for name, shape in shapes[0].items() if shapes[1][name] != shape]


def check_names(
    found: Mapping[str, Callable[[], Tensor]],
    names: list[str],
    allow_missing: tuple[str, ...],
    allow_unexpected: tuple[str, ...],
    say: Say,
) -> dict[str, Callable[[], Tensor]]:
    """The tensors that the model takes; every unmatched name is allowed by a pattern and printed, or an error."""
    problems = []
    for title, unmatched, patterns, key in (
        ("missing in the weights", sorted(set(names) - set(found)), allow_missing, "model.allow-missing"),
        ("left over in the weights", sorted(set(found) - set(names)), allow_unexpected, "model.allow-unexpected"),
    ):
        refused = [name for name in unmatched if not any(fnmatchcase(name, pattern) for pattern in patterns)]
        for name in sorted(set(unmatched) - set(refused)):
            say(f"{title}, and allowed by {key}: {name}")
        if refused:
            problems.append(f"{title} ({len(refused)}): {', '.join(refused)} (allow with --{key} PATTERN)")
    if problems:
        raise WeightsError("the weights do not fit the model:\n  " + "\n  ".join(problems))
    return {name: load for name, load in found.items() if name in set(names)}


def _check_checkpoint(weights: TensorSource, names: list[str], *, known: list[str], whole: bool = True) -> None:
    """Raise ``CheckpointError`` when a checkpoint lacks some of these names, where it should be whole, or has unknown ones.

    What an objective has trained beside the head is not missed by one that trains nothing there: ``mt-eval --objective sft`` of a PPO run.
    """
    missing, extra = sorted(set(names) - set(weights)) if whole else [], sorted(set(weights) - set(known))
    if not any(map(split_objective_name, known)):
        extra = [name for name in extra if split_objective_name(name) is None]
    if missing or extra:
        raise CheckpointError(
            "the checkpoint belongs to another model:"
            + (f" it lacks {', '.join(missing)}." if missing else "")
            + (f" It holds {', '.join(extra)}, which the model has not." if extra else "")
            + " Resume it in the run that wrote it."
        )
