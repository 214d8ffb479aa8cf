"""The start-up proof: a fresh run whose objective knows the loss of the first step has to show it.

A preference loss is known where the model still is its own reference, whatever the rows are: log 2 for DPO. Another one says that
the model of the first step was not the one that was measured, and all of the training would go on from that.
"""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

from mt_core.errors import UsageError
from mt_core.protocols import StepRecord
from mt_train.assemble.dropout import dropouts
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


def check_first_loss(config: RunConfig, dtype: str, objective: object, record: StepRecord) -> None:
    """Raise ``UsageError`` where the first step of a fresh run has another loss than its objective knows."""
    expected = objective.first_loss if isinstance(objective, HasFirstLoss) else None
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
        causes.append(
            f"callbacks that change what the model computes as it trains, as neftune does (the run has {names})"
        )
    causes.append(
        f"adapter {config.adapter.name}, if it computes otherwise as it trains" if config.adapter.name != "full" else ""
    )
    causes.append("documents that see one another (--data.prove looks)")
    causes.append("reference.safetensors, if it is not of these rows and weights (--data.cache none measures it again)")
    proves = "prove" in type(config.objective.options).model_fields
    go_on = " To train nonetheless: --objective.prove false." if proves else ""
    return f"What may be wrong: {'; '.join(filter(None, causes))}.{go_on}"
