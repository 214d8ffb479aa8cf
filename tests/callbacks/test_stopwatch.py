"""Spans that a stopwatch adds up."""

from __future__ import annotations

import pytest
import torch

from mt_plugin_callbacks.stopwatch import Stopwatch


def test_spans_add_up_and_are_heard_while_a_step_is_computed_only(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 3.0, 10.0, 10.5])
    monkeypatch.setattr("mt_plugin_callbacks.stopwatch.time.perf_counter", lambda: next(times))
    watch = Stopwatch(torch.device("cpu"))
    watch.start()
    watch.stop()
    assert watch.seconds() == 0
    watch.listens = True
    watch.stop()  # of a block that is computed again
    for _ in range(2):
        watch.start()
        watch.stop()
    assert watch.seconds() == 2.5
