"""What every printer promises, and what this one says."""

from __future__ import annotations

import math

import mt_plugin_line
from mt_conformance import BaseTaskPrintConformance
from mt_core import StepRecord


class TestBits(BaseTaskPrintConformance):
    plugin = mt_plugin_line
    name = "bits"
    figures = ("eval_loss",)


def test_the_loss_is_said_in_bits() -> None:
    line = mt_plugin_line.build_bits(mt_plugin_line.BitsConfig(digits=1))
    assert line([StepRecord(1, 3 * math.log(2), 1e-3, 1.0, 9, 1.0, 1.0, 0.0)]) == "loss 3.0 bits"
