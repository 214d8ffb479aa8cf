"""NoRA against the paper's formula."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from formula import check_formula
from peft_layers import assert_close, check_start_and_merge, move, place, spaced_linear, start

from mt_plugin_adapters.variants.nora import COMPONENT
from mt_plugin_adapters.variants.nora.config import NoraConfig
from mt_plugin_adapters.variants.nora.layer import NestedLinear

SMALL: dict = {"rank": 6, "alpha": 12.0, "inner_rank": 2}


def layer() -> NestedLinear:
    return start(COMPONENT.build(NoraConfig(**SMALL)).layer(spaced_linear(), place()))


def test_output_gradients_and_merged_weight_are_those_of_the_papers_formula() -> None:
    """W + s · B B' A' A, with A and B of the weight's six largest singular directions."""
    u, s, v = torch.linalg.svd(spaced_linear().weight.double(), full_matrices=False)
    a, b = s[:6].sqrt()[:, None] * v[:6], u[:, :6] * s[:6].sqrt()
    check_formula(move(layer()), lambda w, inner_A, inner_B: w + 2.0 * b @ inner_B @ inner_A @ a)


def test_only_the_inner_pair_is_trained_and_the_outer_one_stays() -> None:
    ours = layer()
    assert {name for name, each in ours.own_parameters() if each.requires_grad} == {"inner_A", "inner_B"}
    s = torch.linalg.svdvals(spaced_linear().weight)[:6]
    assert_close(ours.lora_A @ ours.lora_A.T, torch.diag(s))
    assert_close(ours.lora_B.T @ ours.lora_B, torch.diag(s))


def test_it_begins_as_the_base_and_merges_and_unmerges() -> None:
    check_start_and_merge(layer(), spaced_linear())


def test_an_inner_rank_above_the_outer_one_is_refused() -> None:
    with pytest.raises(ValueError, match="inner_rank=4 is more than the rank of the outer pair, 2"):
        NoraConfig(ranks={"q_proj": 2})
