"""Plain LoRA and LoRA-FA against peft's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from peft_layers import check_start_and_merge, compare, linear, move, peft_lora, place, start

from mt_core import LowRankConfig
from mt_core.adapters import LoraLinear

SMALL: dict = {"rank": 4, "alpha": 8.0}


@pytest.mark.parametrize("rslora", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_output_gradients_and_merged_weight_equal_pefts(rslora: bool, bias: bool) -> None:
    ours = move(start(LoraLinear.of(linear(bias=bias), place(), LowRankConfig(**SMALL, rslora=rslora))))
    theirs = peft_lora(linear(bias=bias), **SMALL, use_rslora=rslora)
    assert ours.scale == theirs.scaling["default"] == (4.0 if rslora else 2.0)
    compare(ours, theirs, {f"lora_{each}": getattr(theirs, f"lora_{each}")["default"].weight for each in "AB"})


def test_it_begins_as_the_base_and_merges_and_unmerges() -> None:
    check_start_and_merge(start(LoraLinear.of(linear(), place(), LowRankConfig(**SMALL))), linear())
