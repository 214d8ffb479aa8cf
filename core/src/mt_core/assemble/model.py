"""The trainable model of a run: built, filled, adapted, and its optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor

from mt_core.adapters.base import Adapter
from mt_core.checkpoint.tensors import open_model, open_overlay
from mt_core.components import OptimizerComponent
from mt_core.config.run import ModelRef
from mt_core.engine.build import TensorSource, build_model, fill_model
from mt_core.engine.engine import Engine
from mt_core.engine.pipeline import PipelineEngine
from mt_core.engine.plan import Plan, deepspeed_settings
from mt_core.engine.processes import Process
from mt_core.engine.sequence import UlyssesAttention, sequence_group
from mt_core.engine.stages import build_stage
from mt_core.engine.step import TrainStep
from mt_core.errors import CheckpointError, ComponentError, WeightsError
from mt_core.nn import LayerSpec, SdpaAttention, TrainModel
from mt_core.plugins.resolve import Resolved
from mt_core.protocols import Objective

Say = Callable[[str], None]


def build_engine(
    resolved: Resolved,
    objective: Objective,
    *,
    plan: Plan,
    process: Process,
    deepspeed: ModuleType,
    say: Say,
    weights: TensorSource | None = None,
) -> Engine:
    """Everything from the empty model to DeepSpeed. ``weights`` (of a checkpoint) replace those that the config names."""
    config, settings = resolved.config, deepspeed_settings(plan)
    make = partial(resolved.build, "train_model", config.model.options)
    stage = build_stage(make, _pipeline_layers(resolved), plan=plan, process=process) if plan.pipeline > 1 else None
    model = (
        stage.model
        if stage is not None
        else build_model(make, plan=plan, settings=settings, deepspeed=deepspeed, process=process)
    )
    adapter: Adapter = resolved.build("adapter", config.adapter.options)
    names = [name for name, _ in model.named_parameters()]
    if weights is not None:
        check_checkpoint(weights, names)
    source = weights if weights is not None else pretrained(resolved, config.model, names, say)
    fill_model(model, source, seed=config.train.seed, process=process)
    adapter.inject(model)
    model.attention = attention = SdpaAttention(config.train.attention)
    if plan.sequence > 1:
        model.attention = UlyssesAttention(attention, sequence_group(process, plan.sequence), plan.sequence)
    model.checkpoint_blocks = config.train.activation_checkpointing
    if config.train.compile:
        for layer in model.layers()[1:-2]:
            layer.module.compile(dynamic=False)
    groups = parameter_groups(resolved, model, adapter)
    if stage is not None:
        groups = stage.own_groups(groups)
    optimizer = resolved.build("optimizer", config.optimizer.options, groups)
    if stage is not None:
        return PipelineEngine(deepspeed, stage, objective, optimizer, plan=plan, process=process, settings=settings)
    return Engine(deepspeed, TrainStep(model, objective), optimizer, plan=plan, process=process, settings=settings)


def _pipeline_layers(resolved: Resolved) -> list[LayerSpec] | None:
    """The layers that the model's plugin gives for a pipeline, if it does."""
    if "pipeline_layers" not in resolved.offers:
        return None
    return list(resolved.build("pipeline_layers", resolved.config.model.options))


def parameter_groups(resolved: Resolved, model: TrainModel, adapter: Adapter) -> list[dict[str, Any]]:
    """The adapter's groups, then the optimizer's policy for the rest; each trainable parameter is in exactly one."""
    component = resolved.offers["optimizer"].component
    assert isinstance(component, OptimizerComponent), "the host checks what mt_optimizers returns"
    trained = set(adapter.trainable_parameters(model))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)
    options = resolved.config.optimizer.options
    claimed = adapter.parameter_groups(model, float(getattr(options, "lr", 0.0)))
    taken = {id(parameter) for group in claimed for parameter in group["params"]}
    rest = [(name, p) for name, p in model.named_parameters() if name in trained and id(p) not in taken]
    groups = [*claimed, *component.split(rest, options)]
    placed = [id(parameter) for group in groups for parameter in group["params"]]
    wanted = {id(p) for name, p in model.named_parameters() if name in trained}
    if len(placed) != len(set(placed)) or set(placed) != wanted:
        raise ComponentError(
            f"the parameter groups of {resolved.config.adapter.name} and {resolved.config.optimizer.name} hold"
            f" {len(placed)} parameters, {len(set(placed))} of them different, and {len(wanted)} are trained; each"
            " trained parameter belongs in exactly one group"
        )
    return groups


# ------------------------------------------------------------------------------------------------- pretrained weights


def pretrained(resolved: Resolved, model: ModelRef, names: list[str], say: Say) -> TensorSource:
    """What ``model.weights`` and ``model.overlay`` hold for these parameters; the overlay wins.

    Raises ``WeightsError`` with every name that is missing or left over and not allowed by a pattern.
    """
    source: dict[str, Callable[[], Tensor]] = {}
    if model.source.weights is not None:
        assert resolved.weights_format is not None, "resolve() finds the format"
        assert resolved.weights_path is not None, "and the weights"
        found = resolved.weights_format.tensors(resolved.weights_path, model.options)
        source = check_names(found, names, model.source.allow_missing, model.source.allow_unexpected, say)
    if model.source.overlay is not None:
        overlay = open_overlay(Path(model.source.overlay))
        if unknown := sorted(set(overlay) - set(names)):
            raise WeightsError(
                f"the overlay {model.source.overlay} holds tensors that the model lacks: {', '.join(unknown)}"
            )
        say(f"overlay {model.source.overlay}: {len(overlay)} tensors replace or complete the weights")
        source |= overlay
    return source


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


def check_checkpoint(weights: TensorSource, names: list[str]) -> None:
    """Raises ``CheckpointError`` when a checkpoint holds other tensors than the model has."""
    missing, extra = sorted(set(names) - set(weights)), sorted(set(weights) - set(names))
    if missing or extra:
        raise CheckpointError(
            "the checkpoint belongs to another model:"
            + (f" it lacks {', '.join(missing)}." if missing else "")
            + (f" It holds {', '.join(extra)}, which the model has not." if extra else "")
            + " Resume it in the run that wrote it."
        )


def checkpoint_weights(folder: Path) -> TensorSource:
    """The weights of a checkpoint."""
    return open_model(folder / "model")
