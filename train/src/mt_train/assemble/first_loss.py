"""The start-up proof: a fresh run whose objective knows the loss of the first step has to show it.

A preference loss is known where the model still is its own reference, whatever the rows are: log 2 for DPO. Another one says that
the model of the first step was not the one that was measured, and all of the training would go on from that. What makes it another one
whatever the rows are, is refused before weights are loaded and the reference is measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from mt_core.errors import ConfigError, Fault, UsageError
from mt_core.protocols import StepRecord
from mt_train.assemble.base_files import adapter_folder
from mt_train.assemble.dropout import dropouts
from mt_train.assemble.parts import Parts
from mt_train.config.run import RunConfig

IN_FP32, IN_FEW_BITS = 1e-4, 0.05
"""How far it may be, as a share: the reference was computed with other rows beside, and sums are rounded. bf16, fp16 and TF32 keep 8
to 11 bits of a number."""
ABSOLUTE = 1e-6


@runtime_checkable
class HasFirstLoss(Protocol):
    """An objective that knows the loss of a run's first step for any rows; a run with another first loss is ended."""

    first_loss: float | None
    """``None`` where it is not known."""


@runtime_checkable
class AddsNoise(Protocol):
    """A callback whose model computes otherwise in training than in evaluations, from the first step on."""

    adds_noise: bool


def refuse_noise(parts: Parts, objective: object) -> None:
    """Raise ``ConfigError`` for a fresh run whose first step cannot have the loss that its objective knows, whatever the rows are."""
    if _known_loss(objective) is None:
        return
    name = parts.config.objective.name
    faults = [
        Fault(
            key=key,
            problem=f"{problem}, so that the model of the first steps is not the reference of --objective {name}.",
            fix=f"{fix}.{_go_on(parts.config)}",
        )
        for key, problem, fix in _noises(parts)
    ]
    if faults:
        raise ConfigError(faults)


def _noises(parts: Parts) -> Iterator[tuple[str, str, str]]:
    """Yield what computes otherwise in training: its key, what it does, and a way out.

    Adapters drop values of what they add, which is nothing in the first step, unless they begin with values that were trained before.
    """
    config = parts.config
    is_trained = config.adapter.source.weights is not None or adapter_folder(config.model.source.overlay) is not None
    for option, rate in dropouts(config):
        key = option.removeprefix("--")
        if key.startswith("model."):
            yield key, f"{rate:g} of the model's values are dropped in training", f"Set {option} 0"
        elif is_trained:
            yield key, f"{rate:g} of the inputs of a trained adapter are dropped in training", f"Set {option} 0"
    for name, callback in parts.callbacks().items():
        if isinstance(callback, AddsNoise) and callback.adds_noise:
            yield "callbacks", f"{name} adds noise in training", f"Leave {name} out"


def _known_loss(objective: object) -> float | None:
    return objective.first_loss if isinstance(objective, HasFirstLoss) else None


def check_first_loss(config: RunConfig, dtype: str, objective: object, record: StepRecord) -> None:
    """Raise ``UsageError`` where the first step of a fresh run has another loss than its objective knows."""
    expected = _known_loss(objective)
    if expected is None or record.step != 1:
        return
    share = IN_FP32 if dtype == "fp32" and not config.train.tf32 else IN_FEW_BITS
    if math.isclose(record.loss, expected, rel_tol=share, abs_tol=ABSOLUTE):
        return
    raise UsageError(
        f"the loss of step 1 is {record.loss:.6g}, and has to be {expected:.6g}: the model has not been trained yet, so that it still is"
        f" the reference of --objective {config.objective.name}. {_advice(config)}"
    )


def _advice(config: RunConfig) -> str:
    """Say what may be wrong, the likeliest first, and how to go on."""
    causes = [f"{option} is {rate:g} (set it to 0)" for option, rate in dropouts(config)]
    if config.callbacks:
        names = ", ".join(each.name for each in config.callbacks)
        causes.append(f"callbacks that change what the model computes as it trains (the run has {names})")
    causes.append(
        f"adapter {config.adapter.name}, if it computes otherwise as it trains" if config.adapter.name != "full" else ""
    )
    causes.append("documents that see one another (--data.prove looks)")
    causes.append("reference.safetensors, if it is not of these rows and weights (--data.cache none measures it again)")
    return f"What may be wrong: {'; '.join(filter(None, causes))}.{_go_on(config)}"


def _go_on(config: RunConfig) -> str:
    """Say how to train with another first loss, where the objective has an option for that."""
    proves = "prove" in type(config.objective.options).model_fields
    return " To train nonetheless: --objective.prove false." if proves else ""
