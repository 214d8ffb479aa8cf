from __future__ import annotations

from typing import Any


def needs_records(config: Any) -> Any:
    return lambda records: f"loss {records[-1].loss}"


def needs_figures(config: Any) -> Any:
    return lambda records: "".join(f"accuracy {each.metrics['token_accuracy']} " for each in records)


def two_lines(config: Any) -> Any:
    return lambda records: "\n".join(f"loss {each.loss}" for each in records)


def changes(config: Any) -> Any:
    return lambda records: "loss " + str([records.pop().loss for _ in list(records)])


def two_when_missing(config: Any) -> Any:
    def line(records: Any) -> str:
        return "\n".join("loss" if "eval_loss" in each.evaluation else "loss\nno evaluation" for each in records[-1:])

    return line


def all_or_none(config: Any) -> Any:
    """What the last record has, it looks for in all of them."""

    def line(records: Any) -> str:
        keys = records[-1].metrics if records else ()
        return " ".join(f"{key} {sum(each.metrics[key] for each in records):.2f}" for key in keys)

    return line


def returns(config: Any) -> Any:
    return lambda records: "loss\r" if records else ""


def hoards(config: Any) -> Any:
    """Prints the mean of all losses that it has seen."""
    seen: list[float] = []

    def line(records: Any) -> str:
        seen.extend(each.loss * each.step for each in records)
        return f"loss {sum(seen) / len(seen):.3f}" if seen else ""

    return line
