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
