"""A line of one's own: the loss in bits per token."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import Field

from mt_core import Component, MtConfig, StepRecord, TaskPrint, hookimpl


class BitsConfig(MtConfig):
    """Look of the line."""

    digits: int = Field(3, ge=0, le=9, description="digits after the decimal point")


def build_bits(config: BitsConfig) -> TaskPrint:
    """The printer: ``loss 2.885 bits | held out 3.001 bits``; what a record lacks is left out, and nothing is raised."""

    def line(records: Sequence[StepRecord]) -> str:
        losses = [record.loss for record in records]
        held_out = [record.evaluation["eval_loss"] for record in records if "eval_loss" in record.evaluation]
        shown = {"loss": sum(losses) / len(losses) if losses else None, "held out": held_out[-1] if held_out else None}
        return " | ".join(
            f"{name} {nats / math.log(2):.{config.digits}f} bits" for name, nats in shown.items() if nats is not None
        )

    return line


@hookimpl
def mt_task_prints() -> list[Component]:
    return [Component(name="bits", config=BitsConfig, build=build_bits, summary="the loss in bits per token")]
