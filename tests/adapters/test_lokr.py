"""LoKr against peft's."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
from peft import LoKrConfig
from peft.tuners.lokr.layer import Linear as PeftLokr
from peft.tuners.lokr.layer import factorization

sys.path.insert(0, str(Path(__file__).parent))

from peft_layers import check_start_and_merge, compare, linear, move, place, start

from mt_plugin_adapters.variants.lokr import COMPONENT
from mt_plugin_adapters.variants.lokr.config import LokrConfig
from mt_plugin_adapters.variants.lokr.layer import KroneckerLinear, two_factors

SMALL: dict = {"rank": 4, "alpha": 8.0}
SHAPES = {
    "both whole": ({}, {}, {"lokr_w1", "lokr_w2"}),
    "D in two": ({"rank": 2}, {}, {"lokr_w1", "lokr_w2_a", "lokr_w2_b"}),
    "both in two": (
        {"rank": 1, "decompose_both": True},
        {"decompose_both": True},
        {"lokr_w1_a", "lokr_w1_b", "lokr_w2_a", "lokr_w2_b"},
    ),
    "a factor": ({"factor": 2, "rank": 2}, {"decompose_factor": 2}, {"lokr_w1", "lokr_w2_a", "lokr_w2_b"}),
}


def layer(bias: bool = True, **options: object) -> KroneckerLinear:
    return start(COMPONENT.build(LokrConfig(**{**SMALL, **options})).layer(linear(bias=bias), place()))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_output_gradients_and_merged_weight_equal_pefts(shape: str, bias: bool) -> None:
    options, of_peft, names = SHAPES[shape]
    rank = options.get("rank", 4)
    base, config = copy.deepcopy(linear(bias=bias)), LoKrConfig(r=rank, alpha=8.0, **of_peft)
    theirs = PeftLokr(base, "default", config=config, r=rank, alpha=8.0)
    compare(move(layer(bias, **options)), theirs, {name: getattr(theirs, name)["default"] for name in names})


@pytest.mark.parametrize("shape", SHAPES)
def test_it_begins_as_the_base_and_merges_and_unmerges(shape: str) -> None:
    check_start_and_merge(layer(**SHAPES[shape][0]), linear())


@pytest.mark.parametrize("factor", [None, 2, 4, 5, 16, 48])
def test_sizes_are_divided_as_peft_divides_them(factor: int | None) -> None:
    for size in (1, 2, 12, 24, 48, 97, 128, 172, 4096):
        assert two_factors(size, factor) == factorization(size, -1 if factor is None else factor), size
