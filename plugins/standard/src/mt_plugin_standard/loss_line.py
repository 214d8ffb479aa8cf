"""The line that a person reads while it trains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mt_core import MtConfig, StepRecord

if TYPE_CHECKING:
    from mt_core.protocols import TaskPrint


MOST_SOURCES = 4
"""Sources of a mix whose losses fit into the line; those of more are in the record alone."""


class LossLineConfig(MtConfig):
    """The loss line has no options."""


def build_loss_line(config: LossLineConfig) -> TaskPrint:
    """The printer."""
    return loss_line


def loss_line(records: Sequence[StepRecord]) -> str:
    """Mean loss (nats per token) and reward, evaluation, rate, gradient norm, speed and memory; what is missing is left out."""
    parts = [
        _format("loss {:.4f}", _mean(_values(records, "loss"))),
        _format("reward {:.4f}", _mean(_numbers(_metrics(record).get("reward") for record in records))),
        *(_format(f"{name} {{:.4f}}", value) for name, value in _evaluation(records).items()),
        _format("lr {:.2e}", _last(records, "lr")),
        _format("norm {:.2f}", _last(records, "grad_norm")),
        _format("{:,.0f} tokens/s", _mean(_values(records, "tokens_per_second"))),
        _format("{:.2f} GiB", _last(records, "memory_gib")),
    ]
    return " | ".join(part for part in parts if part)


def _metrics(record: StepRecord) -> Mapping[str, Any]:
    return getattr(record, "metrics", None) or {}


def _values(records: Iterable[StepRecord], name: str) -> list[float]:
    """Return the numbers that the records have under this name; a record without it counts for nothing."""
    return _numbers(getattr(record, name, None) for record in records)


def _numbers(values: Iterable[Any]) -> list[float]:
    return [float(value) for value in values if isinstance(value, int | float)]


def _last(records: Sequence[StepRecord], name: str) -> float | None:
    values = _values(records, name)
    return values[-1] if values else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _evaluation(records: Sequence[StepRecord]) -> dict[str, float]:
    """The newest value of each evaluation metric, without standard errors, which are in the record.

    Answers that are learned from have a dozen figures, held out as well; of these the line has the reward. Of the sources of a mix it
    has the losses where there are few.
    """
    newest: dict[str, float] = {}
    for record in records:
        found = getattr(record, "evaluation", None) or {}
        newest.update({name: value for name, value in found.items() if not name.endswith("_stderr")})
    of_sources = [name for name in newest if name.startswith("eval_loss_")]
    if len(of_sources) > MOST_SOURCES:
        newest = {name: value for name, value in newest.items() if name not in of_sources}
    if "eval_reward" not in newest:
        return newest
    of_answers = {f"eval_{name}" for record in records for name in _metrics(record)} - {"eval_reward"}
    return {name: value for name, value in newest.items() if name not in of_answers}


def _format(form: str, value: float | None) -> str:
    return "" if value is None else form.format(value)
