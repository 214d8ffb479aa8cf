"""The reference over a stream: what the base under the adapter gives the rows of a step, measured just before it.

Nobody has seen the rows of a stream at step 0, and later the model has moved. Where an adapter leaves its base as it is, and began as
it, the base still is the model of step 0 (``Adapter.base_is_reference``), so that each rank measures its own rows when they come. No
weight is moved or copied, nothing is kept, and a resumed run measures the same again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from mt_core.adapters import viewing
from mt_core.errors import ConfigError, Fault
from mt_core.model_protocols import HasReference
from mt_core.nn import Batch
from mt_core.tracking.logs import notice
from mt_train.assemble.base_files import adapter_folder
from mt_train.assemble.data import RunData
from mt_train.assemble.expert_forms import fit_experts
from mt_train.assemble.parts import Parts
from mt_train.assemble.reference import measure_batch, measures
from mt_train.checkpoint.tensors import open_overlay
from mt_train.engine.engine import Engine
from mt_train.engine.meta import on_meta
from mt_train.engine.step_result import StepResult
from mt_train.loop import Stepper

OTHERWISE = "take a dataset of files, or an objective or a loss without a reference (simpo, cpo, orpo)"


def refuse_stream(parts: Parts, data: RunData) -> None:
    """Raise ``ConfigError`` for an objective with a reference over a stream, unless the base under the adapter is the model of step 0."""
    if data.stream is None or not measures(data.objective):
        return
    name = parts.config.objective.name
    faults = [
        Fault(
            key=key,
            problem=f"{problem}, so that --objective {name} has no reference for the rows of a stream: they come after step 0.",
            fix=f"{fix}, or {OTHERWISE}.",
        )
        for key, problem, fix in changes_of_base(parts)
    ]
    if faults:
        raise ConfigError(faults)


def changes_of_base(parts: Parts) -> Iterator[tuple[str, str, str]]:
    """Yield why the base under the adapter is not the model of step 0: the key that says so, what it does, and a way out."""
    config, component = parts.config, parts.adapter_component
    lora = "Take an adapter that begins as its base and leaves it as it is (lora, dora)"
    if component.rewrites_base:
        yield "adapter", f"{component.name} rewrites the weights under it", lora
    elif not component.exact_at_init:
        yield "adapter", f"{component.name} begins as another model than its base", lora
    elif not parts.adapter().base_is_reference:
        yield "adapter", f"{component.name} leaves no base that is the model of step 0", lora
    if config.train.enable:
        yield (
            "train.enable",
            f"{', '.join(config.train.enable)} are trained beside the adapter",
            "Train the adapter alone",
        )
    first, overlay = config.adapter.source.weights, config.model.source.overlay
    given = first or (overlay if adapter_folder(overlay) is not None else None)
    merge = "Merge them into the base (--model.adapters FOLDER), under a new adapter"
    if given is not None:
        key = "adapter.weights" if first else "model.overlay"
        yield key, f"the adapter begins with the values of {given}", merge
    elif overlay is not None and (own := _of_adapter(parts, Path(overlay).expanduser())):
        yield "model.overlay", f"{overlay} has values of the adapter ({', '.join(own[:2])})", merge


def _of_adapter(parts: Parts, overlay: Path) -> list[str]:
    """Return the tensors of an overlay that are none of the model's. It may be gone where a run is resumed."""
    with on_meta():
        names = {name for name, _ in parts.model().named_parameters()}
    return sorted(set(fit_experts(parts, open_overlay(overlay), names)) - names) if overlay.exists() else []


def stepper_of(engine: Engine, data: RunData) -> Stepper:
    """Return what the loop drives: the engine, over a stream with the reference of each step where the objective has one."""
    objective = data.objective
    if data.stream is None or not measures(objective):
        return engine
    if engine.process.is_main:
        notice("reference: the base under the adapter reads the rows of each step before it")
    return ReferencedSteps(engine, objective)


class ReferencedSteps:
    """The steps of an engine, whose rows have the reference when they get there."""

    def __init__(self, engine: Engine, objective: HasReference) -> None:
        self.engine, self.objective = engine, objective

    def set_rate(self, factor: float) -> float:
        """See ``Engine``."""
        return self.engine.set_rate(factor)

    def train_step(
        self, window: Sequence[Batch], stop: Callable[[], float], before_update: Callable[[], object]
    ) -> StepResult:
        """See ``Engine``."""
        return self.engine.train_step(self.with_reference(window), stop, before_update)

    def with_reference(self, window: Sequence[Batch]) -> list[Batch]:
        """Return the micro-batches with what the base gives their documents; as they are where a pipeline has no loss. Collective."""
        measured: list[Batch] = []

        def reader(hidden: Tensor, head: nn.Module, batch: Batch) -> None:
            values = {name: value.float() for name, value in measure_batch(self.objective, hidden, head, batch).items()}
            own = window[len(measured)]
            measured.append(replace(own, documents={**own.documents, **values}))

        with viewing(self.engine.module.model, "base"):
            self.engine.read(window, reader)
        return measured or list(window)
