"""MELoRA against the paper's formula."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from paper_formulas import compare_with_formula
from peft_layers import check_start_and_merge, linear, move, place, start

from mt_core import UsageError
from mt_plugin_adapters.variants.melora import COMPONENT
from mt_plugin_adapters.variants.melora.config import MeloraConfig
from mt_plugin_adapters.variants.melora.layer import MeloraLinear

SMALL: dict = {"rank": 2, "alpha": 4.0, "parts": 4}


def layer(**options: object) -> MeloraLinear:
    return start(COMPONENT.build(MeloraConfig(**{**SMALL, **options})).layer(linear(), place()))


@pytest.mark.parametrize("parts", [1, 2, 4, 8])
def test_output_gradients_and_merged_weight_are_those_of_the_papers_formula(parts: int) -> None:
    """Equation 3: the product of the block-diagonals of all B and of all A."""
    compare_with_formula(
        move(layer(parts=parts)),
        lambda w, p: w + 2.0 * torch.block_diag(*p["lora_B"]) @ torch.block_diag(*p["lora_A"]),
    )


def test_the_update_has_the_sum_of_the_ranks_with_the_parameters_of_one() -> None:
    ours = move(layer())
    assert torch.linalg.matrix_rank(ours.delta_weight()) == 2 * 4
    assert sum(each.numel() for _, each in ours.own_parameters()) == 2 * (24 + 16)


def test_it_begins_as_the_base_and_merges_and_unmerges() -> None:
    check_start_and_merge(layer(), linear())


@pytest.mark.parametrize("parts", [3, 16])
def test_parts_that_do_not_divide_are_refused(parts: int) -> None:
    with pytest.raises(UsageError, match=f"{parts} does not divide the 24 inputs and 16 outputs"):
        layer(parts=parts)
