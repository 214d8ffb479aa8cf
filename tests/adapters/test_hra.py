"""HRA against peft's."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
from peft import HRAConfig
from peft.tuners.hra.layer import HRALinear as PeftHra
from pydantic import ValidationError

sys.path.insert(0, str(Path(__file__).parent))

from peft_layers import assert_close, check_start_and_merge, compare, linear, move, place, start

from mt_plugin_adapters.variants.hra import COMPONENT
from mt_plugin_adapters.variants.hra.config import HraConfig
from mt_plugin_adapters.variants.hra.layer import ReflectedLinear

SMALL: dict = {"rank": 4}


def layer(bias: bool = True, **options: object) -> ReflectedLinear:
    return start(COMPONENT.build(HraConfig(**{**SMALL, **options})).layer(linear(bias=bias), place()))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rank", [2, 4, 16])
def test_output_gradients_and_merged_weight_equal_pefts(bias: bool, rank: int) -> None:
    theirs = PeftHra(copy.deepcopy(linear(bias=bias)), "default", r=rank, config=HRAConfig(r=rank))
    compare(move(layer(bias, rank=rank)), theirs, {"hra_u": theirs.hra_u["default"]})


def test_gradients_of_equal_pairs_equal_pefts() -> None:
    """As training begins."""
    theirs = PeftHra(copy.deepcopy(linear()), "default", r=4, config=HRAConfig(r=4))
    compare(layer(), theirs, {"hra_u": theirs.hra_u["default"]})


def test_it_begins_as_the_base_and_merges_and_unmerges() -> None:
    check_start_and_merge(layer(), linear(), first=1e-6)


def test_rows_keep_their_lengths_and_angles() -> None:
    merged, base = move(layer()).merged_weight(), linear().weight
    assert_close(merged @ merged.T, base @ base.T)


def test_no_tensor_of_the_inputs_size_is_kept_but_the_inputs() -> None:
    kept: list[torch.Tensor] = []
    ours, x = layer(rank=16), torch.randn(50, 24, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each):
        ours.transformed_input(x)
    assert {each.data_ptr() for each in kept if each.numel() >= x.numel()} == {x.data_ptr()}


def test_an_odd_number_of_reflections_is_refused() -> None:
    with pytest.raises(ValidationError, match="multiple of 2"):
        HraConfig(rank=3)
