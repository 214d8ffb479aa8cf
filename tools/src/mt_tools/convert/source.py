"""Source of a conversion: a folder of weights in a family's format, or a checkpoint of a run. Finding it imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core.components import ModelFamily, WeightsFormat
from mt_core.errors import UsageError
from mt_core.plugins.host import PluginHost
from mt_core.weights import Loaders
from mt_train.assemble.choice import chosen_checkpoints
from mt_train.assemble.parts import Parts
from mt_train.assemble.run_file import run_config
from mt_train.checkpoint.manifest import MANIFEST, read_manifest
from mt_train.checkpoint.store import find, verify
from mt_train.plugins.hub import folder_of, locate_existing
from mt_train.plugins.resolve import resolve
from mt_train.plugins.weights_family import family_of
from mt_train.plugins.whole_models import encoders_of

if TYPE_CHECKING:
    from mt_core.nn import TrainModel

Say = Callable[[str], None]


@dataclass(frozen=True)
class Source:
    """A model in some place: its config and family, and the checkpoint or the folder that has its weights."""

    path: Path
    parts: Parts
    writer: WeightsFormat
    checkpoint: Path | None
    started_from: str | None = None
    """The text of a run's ``model.weights``, whether that is still there or not."""
    base_name: str | None = None
    """Name of those weights on the Hub, perhaps with ``@revision``, as somebody gives it who exports the run."""
    replaces_tokenizer: bool = False
    """Whether the tokenizer is another one than that of the folder, whose files stay behind."""
    averaged: str | None = None
    """Callback of the run whose averaged weights stand for those of the last step."""

    @property
    def weights(self) -> Path | None:
        """The folder of pretrained weights: the source itself, or what the run started from where that is still there."""
        folder = self.parts.weights_path
        return None if folder is None else folder_of(folder)


def open_source(
    given: str,
    host: PluginHost,
    family: str | None = None,
    tokenizer: Mapping[str, Any] | None = None,
    objective: Mapping[str, Any] | None = None,
) -> Source:
    """The model at a path (or of a name on the Hub), checked as far as headers and configs tell.

    Of a folder of weights, ``tokenizer`` are options of the tokenizer, such as tokens to add, and ``objective`` is the one whose modules
    the weights have.

    Raises ``WeightsError``, ``CheckpointError`` or ``ConfigError`` for what is missing, damaged or not supported.
    """
    path = locate_source(given)
    if (path / "run.yaml").is_file() or (path / MANIFEST).is_file():
        if tokenizer:
            raise UsageError(f"{path} is a run; write it into a folder first (mt-convert {path} FOLDER)")
        return _of_run(path, host, family)
    raw: dict[str, Any] = {"model": {"name": family or family_of(path, host), "weights": str(path)}}
    if encoders := encoders_of(path, host):
        raw["encoders"] = encoders
    raw |= {"train": {"sequence_len": 2}, "tokenizer": dict(tokenizer or {})} | (
        {"objective": objective} if objective else {}
    )
    parts = Parts.of(resolve(raw, host))
    return Source(path, parts, _writer(parts), None)


def open_run(run: Path, which: str, host: PluginHost) -> Source:
    """Return the model in one checkpoint of a run: ``last``, ``best``, or a saved step. Raises ``UsageError`` for several."""
    found = chosen_checkpoints(run, which)
    if len(found) != 1:
        raise UsageError(f"checkpoint {which} means {len(found)} checkpoints; name one: last, best, or a saved step")
    return open_source(str(found[0]), host)


def locate_source(given: str) -> Path:
    """Return the folder that a path, or a name on the Hub, means. Raises ``WeightsError`` where nothing is there."""
    return locate_existing(given, "give a folder of weights, a run, or one of its checkpoints")


def _of_run(path: Path, host: PluginHost, family: str | None) -> Source:
    if family is not None:
        raise UsageError(f"--model belongs to a folder of weights; {path} is a run and has its own, leave it out")
    checkpoint = find(path)
    verify(checkpoint)
    raw, manifest = run_config(checkpoint), read_manifest(checkpoint)
    started = manifest.get("config", raw)["model"].get("weights")
    parts = Parts.of(resolve(raw, host))
    return Source(path, parts, _writer(parts), checkpoint, started)


def _writer(parts: Parts) -> WeightsFormat:
    family = parts.offers["model"].component
    assert isinstance(family, ModelFamily), "the host checks what mt_model_configs returns"
    writer = next((each for each in family.formats if each.exported is not None), None)
    if writer is None:
        raise UsageError(f"the family {family.name} writes no Hugging Face folder; it has no format with exported()")
    return writer


@dataclass(frozen=True)
class SourceTensors:
    """One loader a parameter of a model, in its order, their shapes, and the names of those that it has ``kept``, whose precision stays."""

    loaders: Loaders
    shapes: Mapping[str, tuple[int, ...]]
    kept: frozenset[str]


def tensors_of(source: Source, say: Say, *, adapted: bool = False) -> SourceTensors:
    """Return the tensors of a source; with ``adapted`` those of the model under an adapter.

    Raises ``WeightsError`` for names that do not fit, ``CheckpointError`` for an average that is not there, and ``UsageError`` for a run
    whose adapter has parameters of its own.
    """
    from mt_train.assemble.expert_forms import fit_experts
    from mt_train.assemble.media import MEDIA
    from mt_train.assemble.weights import averaged_of, weights_of
    from mt_train.engine.build import drawn_values

    model = build_on_meta(source.parts)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    kept = frozenset(model.kept_names())
    if not adapted and inject_adapter(source, model):
        raise UsageError(
            f"{source.path} has the adapter {source.parts.config.adapter.name} over its weights: mt-export --run"
            f" {source.path} --merge --output FOLDER writes both as one, and without --merge the adapter alone"
        )
    found = weights_of(source.parts, list(shapes), say, source.checkpoint, adapted=adapted)
    if source.averaged is not None:
        found = {**found, **fit_experts(source.parts, averaged_of(source.checkpoint, source.averaged), list(shapes))}
    is_drawn = source.checkpoint is not None and source.parts.weights_path is None  # a frozen base may be in no file
    if is_drawn or any(name.startswith(MEDIA) and name not in found for name in shapes):  # nor may a projector
        found = {**drawn_values(model, source.parts.config.train.seed), **found}
    return SourceTensors({name: found[name] for name in shapes}, shapes, kept)


def inject_adapter(source: Source, model: TrainModel) -> bool:
    """Put the adapter of a run into a model without memory, and return whether it has parameters of its own, which the family has not."""
    from mt_train.assemble.injection import inject

    if source.checkpoint is None:
        return False
    names = {name for name, _ in model.named_parameters()}
    inject(source.parts, model, checkpoint=source.checkpoint)
    return any(name not in names for name, _ in model.named_parameters())


def saved_tensors(source: Source) -> Loaders:
    """Return the tensors in a run's checkpoint, with those of the average that the source names in their place.

    Raises ``CheckpointError`` for an average that is not there.
    """
    from mt_train.assemble.weights import averaged_of
    from mt_train.checkpoint.tensors import open_model

    assert source.checkpoint is not None, "a run has one"
    found = open_model(source.checkpoint / "model")
    return dict(found) if source.averaged is None else {**found, **averaged_of(source.checkpoint, source.averaged)}


def build_on_meta(parts: Parts) -> TrainModel:
    """The model without memory, its adapter not in it."""
    from mt_train.engine.meta import on_meta

    with on_meta():
        return parts.model()
