"""What the commands do, from Python: the same errors, no ``sys.exit``, and nothing left behind in the process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core.assemble.choice import chosen
from mt_core.assemble.discovery import discovered
from mt_core.assemble.lock_file import run_config
from mt_core.assemble.resume import is_finished, resolve_resumed
from mt_core.checkpoint.folder import next_run_folder
from mt_core.config.commandline import merge
from mt_core.config.files import read_config
from mt_core.config.names import expand
from mt_core.config.run import RunConfig
from mt_core.engine.plan import check_layout
from mt_core.errors import UsageError, did_you_mean
from mt_core.generation.rules import SamplingRules, Wishes
from mt_core.plugins.resolve import Resolved, resolve
from mt_core.tracking.logs import notice

if TYPE_CHECKING:
    from mt_core.adapters import SeveralAdapters
    from mt_core.assemble.outcome import Outcome
    from mt_core.generation.generate import Generation
    from mt_core.generation.loaded import Loaded
    from mt_core.generation.prompts import Prompt

Config = RunConfig | Mapping[str, Any] | str | Path
"""A run's config: resolved, as nested mappings, or a YAML or JSON file."""


def load_config(source: Config, **changes: Any) -> RunConfig:
    """The resolved config of a mapping or file; ``changes`` are slots and sections on top, as in ``train={"steps": 9}``.

    Raises ``ConfigError`` with every fault. Imports no torch.
    """
    return resolve(merge(_raw(source), changes), discovered()).config


def check_config(source: Config, *, processes: int = 1) -> RunConfig:
    """The resolved config, if its layout can run on so many processes: whatever can be refused on paper is.

    Raises ``ConfigError`` with every fault. Imports no torch.
    """
    resolved = resolve(_raw(source), discovered())
    check_layout(resolved.config, world=processes, offers=resolved.offers.values())
    return resolved.config


def train(
    config: Config | None = None,
    *,
    output: str | Path | None = "auto",
    overwrite: bool = False,
    resume: str | Path | None = None,
) -> Outcome:
    """Train, as ``mt-train`` does in one process (or as one of those that ``torchrun`` started).

    ``output`` is the run's folder, ``auto`` for ``runs/<model>-<size>-NNN``, or ``None`` to write no file. ``resume`` is a
    run or checkpoint to go on from; ``config`` then holds only what changes. While it runs, the first Ctrl-C, SIGTERM or
    SIGUSR1 saves and returns, with its name in ``Outcome.stopped``. Raises ``MtError``, as the commands report it.
    """
    from mt_core.assemble.run import RunOptions, run

    host = discovered()
    if resume is not None:
        if output != "auto":
            raise UsageError("resume goes on in the run's own folder; leave out output")
        resolved, checkpoint = resolve_resumed(_raw(config), Path(expand(str(resume))), host)
        folder = checkpoint.parent.parent
        if is_finished(folder, resolved, checkpoint):
            raise UsageError(f"{folder} is completed; give more steps, as in config={{'train': {{'steps': 800}}}}")
        return run(resolved, RunOptions(output=folder, checkpoint=checkpoint))
    if config is None:
        raise UsageError("train() needs a config, or a run to resume")
    resolved = resolve(_raw(config), host)
    return run(resolved, RunOptions(output=_folder(output, resolved), overwrite=overwrite))


def load_run(run: str | Path, *, checkpoint: str = "last", averaged: str | None = None) -> Loaded:
    """The trained model of a run with its tokenizer, on the GPU where there is one.

    ``checkpoint`` is ``last``, ``best`` or a step; ``averaged`` names the callback whose average is taken.

    Raises ``CheckpointError`` where there is none, or it is damaged.
    """
    from mt_core.assemble.load import load

    found = chosen(Path(expand(str(run))), str(checkpoint))[-1]
    resolved = resolve(run_config(found.parent.parent), discovered())
    return load(resolved, found, notice, averaged=averaged)


def load_adapters(
    folders: Mapping[str, str | Path], *, model: str, weights: str | Path
) -> tuple[Loaded, SeveralAdapters]:
    """Pretrained weights with several adapters, by a name for each folder that peft or ``mt-export`` wrote.

    ``model`` is the family that reads ``weights``. None counts before ``SeveralAdapters.use``. Raises ``WeightsError`` and
    ``UsageError`` for adapters of other weights, and for those that stand for more than linear layers.
    """
    from mt_core.adapters import SeveralAdapters
    from mt_core.assemble.adapter_slot import adapter_in, folder_at
    from mt_core.assemble.load import load
    from mt_core.assemble.weights import check_base_of

    host = discovered()
    raw = {"model": {"name": model, "weights": str(weights)}, "train": {"sequence_len": 2}}  # generation has no rows
    resolved = resolve(raw, host)
    found = {name: folder_at(Path(expand(str(path)))) for name, path in folders.items()}
    for folder in found.values():
        check_base_of(folder, resolved)
    loaded = load(resolved, None, notice)
    several = SeveralAdapters(loaded.model)
    for name, folder in found.items():
        several.add(name, *adapter_in(folder, host))
    return loaded, several


def generate(
    loaded: Loaded,
    prompts: str | Sequence[Prompt],
    *,
    max_new_tokens: int = 128,
    stop: Sequence[str] = (),
    choices: Sequence[str] = (),
    batch_size: int = 8,
    seed: int = 0,
    chat_template: str | None = None,
    **rules: Any,
) -> list[Generation]:
    """Continue each prompt (a text, or the messages of a conversation): text, ids, and why each ended.

    ``rules`` are those of ``mt-generate``: ``greedy``, ``temperature``, ``top_k``, ``top_p``, ``num_beams`` and more. Prompt i
    draws from a generator that (``seed``, i) decides, so ``batch_size`` changes no text. Raises ``UsageError``.
    """
    from mt_core.generation.generate import generate as continue_each

    wishes = Wishes(
        rules=_rules(rules), max_new_tokens=max_new_tokens, stop=tuple(stop), choices=tuple(choices), seed=seed
    )
    return continue_each(loaded, prompts, wishes, batch_size=batch_size, chat_template=chat_template)


def _rules(given: Mapping[str, Any]) -> SamplingRules:
    known = [each.name for each in fields(SamplingRules)]
    if unknown := [name for name in given if name not in known]:
        hint = did_you_mean(unknown[0], known)
        raise UsageError(f"generate() knows no rule {unknown[0]!r}. {hint}Rules: {', '.join(known)}")
    return SamplingRules(**given)


def _folder(output: str | Path | None, resolved: Resolved) -> Path | None:
    if output is None:
        return None
    return next_run_folder(resolved.stem) if output == "auto" else Path(expand(str(output)))


def _raw(config: Config | None) -> dict[str, Any]:
    if config is None:
        return {}
    if isinstance(config, RunConfig):
        return config.as_raw()
    return read_config(config) if isinstance(config, str | Path) else merge({}, config)
