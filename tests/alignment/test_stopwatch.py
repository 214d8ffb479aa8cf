"""Seconds by what they were spent on."""

from __future__ import annotations

import pytest

from mt_plugin_alignment.stopwatch import Stopwatch


def test_seconds_add_up_by_name_until_they_are_cleared() -> None:
    times = iter([1.0, 3.0, 10.0, 10.5, 20.0, 24.0, 0.0, 1.0])
    watch = Stopwatch(clock=lambda: next(times))
    for name in ("write", "score", "write"):
        with watch.measure(name):
            pass
    assert watch.seconds == {"write": 6.0, "score": 0.5}
    before = watch.seconds
    watch.clear()
    assert (watch.seconds, before["write"]) == ({}, 6.0), "what was read before stays"
    with pytest.raises(ZeroDivisionError), watch.measure("score"):
        _ = 1 / 0
    assert watch.seconds == {"score": 1.0}
