"""A stand-in for ``mt-train`` whose figures are a formula of the config: a search of many trials then takes no time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from mt_core import CallbackContext, StepRecord
from mt_plugin_search.process import STOPPED, Order
from mt_plugin_search.pruning import MedianPruning, MedianPruningConfig
from mt_plugin_search.request import CALLBACK
from mt_train.command import read_config, write_yaml

STEPS = 4
RAW: dict[str, Any] = {"model": {"name": "kit-tiny", "n_layers": 1}, "train": {"steps": STEPS}}
SPACE: dict[str, Any] = {"optimizer.lr": "log:1e-5..1e-1", "train.micro_batch_size": [2, 4, 8]}


def loss(lr: float, rows: float = 2) -> float:
    """Least at a rate of 1e-3."""
    return abs(math.log10(lr) + 3) + 0.01 * rows


class FakeTrain:
    """A runner. It evaluates after each step, with the real callback where the config names it.

    ``fails(lr)`` says which runs fail, ``stop_after`` (trials) when a signal comes in the middle of one.
    """

    def __init__(
        self,
        *,
        fails: Callable[[float], bool] = lambda lr: False,
        stop_after: int | None = None,
        metric: str = "eval_loss",
    ) -> None:
        self.fails, self.stop_after, self.metric = fails, stop_after, metric
        self.rates: list[float] = []

    def __call__(self, order: Order) -> int:
        raw = read_config(order.config)
        lr, rows = float(raw["optimizer"]["lr"]), raw["train"].get("micro_batch_size", 2)
        self.rates.append(lr)
        order.run.mkdir(exist_ok=True)
        if len(self.rates) == self.stop_after:
            return STOPPED
        if self.fails(lr):
            order.log.write_text("starting\nerror: step 1: loss nan is not finite\nbye\n")
            return 1
        lines = self._train(raw, lr, rows)
        (order.run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (order.run / "about.json").write_text(json.dumps({"total_steps": STEPS}))
        (order.run / "run.yaml").write_text(write_yaml(as_run(raw)))
        (order.run / "completed").touch()
        return 0

    def _train(self, raw: Mapping[str, Any], lr: float, rows: int) -> list[dict[str, Any]]:
        callback = self._callback(raw)
        lines = []
        for step in range(1, STEPS + 1):
            value = loss(lr, rows) + (STEPS - step)
            record = {"step": step, "loss": value, "lr": lr, self.metric: value}
            lines.append(record)
            if (
                callback is not None
                and (asked := callback.on_evaluate_end(context(step, self.metric, value)))
                and asked.stop
            ):
                break
        return lines

    def _callback(self, raw: Mapping[str, Any]) -> MedianPruning | None:
        options = raw.get("callbacks", {}).get(CALLBACK)
        if options is None:
            return None
        callback = MedianPruning(MedianPruningConfig(**options))
        callback.on_run_start(CallbackContext(step=0, total_steps=STEPS, output=None, evaluates=True))
        return callback


def as_run(raw: Mapping[str, Any]) -> dict[str, Any]:
    """As ``run.yaml`` has it: components that may be several are a list."""
    callbacks = [{"name": name, **options} for name, options in raw.get("callbacks", {}).items()]
    return {**raw, "callbacks": callbacks} if callbacks else dict(raw)


def context(step: int, metric: str, value: float) -> CallbackContext:
    """What a callback sees at an evaluation."""
    clocks = {"tokens": 0, "tokens_per_second": 0.0, "memory_gib": 0.0, "data_wait_seconds": 0.0}
    record = StepRecord(step=step, loss=value, lr=0.0, grad_norm=1.0, evaluation={metric: value}, **clocks)
    return CallbackContext(step=step, total_steps=STEPS, output=None, evaluates=True, record=record)
