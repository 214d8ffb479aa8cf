"""HiRA against peft's."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
from peft import HiraConfig as PeftConfig
from peft.tuners.hira.layer import Linear as PeftHira

sys.path.insert(0, str(Path(__file__).parent))

from peft_layers import check_start_and_merge, compare, linear, move, place, start

from mt_plugin_adapters.variants.hira import COMPONENT
from mt_plugin_adapters.variants.hira.config import HiraConfig
from mt_plugin_adapters.variants.hira.layer import HiraLinear

SMALL: dict = {"rank": 4}


def layer(bias: bool = True, **options: object) -> HiraLinear:
    return start(COMPONENT.build(HiraConfig(**SMALL, **options)).layer(linear(bias=bias), place()))


@pytest.mark.parametrize("bias", [True, False])
def test_output_gradients_and_merged_weight_equal_pefts(bias: bool) -> None:
    theirs = PeftHira(copy.deepcopy(linear(bias=bias)), "default", r=4, config=PeftConfig(r=4))
    compare(move(layer(bias)), theirs, {name: getattr(theirs, name)["default"] for name in ("hira_A", "hira_B")})


def test_it_begins_as_the_base_and_merges_and_unmerges() -> None:
    check_start_and_merge(layer(), linear())


def test_nothing_of_the_weights_size_is_kept_for_the_backward() -> None:
    kept: list[torch.Tensor] = []
    ours, x = layer(), torch.randn(3, 24, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each):
        out = ours(x)
    weight = ours.weight.untyped_storage().data_ptr()
    assert all(each.untyped_storage().data_ptr() == weight for each in kept if each.numel() >= ours.weight.numel())
    out.sum().backward()
    assert ours.hira_B.grad.abs().max() > 0
