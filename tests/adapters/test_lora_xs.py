"""LoRA-XS against the paper's formula."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from paper_formulas import compare_with_formula
from peft_layers import assert_close, check_start_and_merge, linear, move, place, spaced_linear, start

from mt_plugin_adapters.variants.lora_xs import COMPONENT
from mt_plugin_adapters.variants.lora_xs.config import LoraXsConfig
from mt_plugin_adapters.variants.lora_xs.layer import SquareLinear

SMALL: dict = {"rank": 4, "alpha": 8.0}
LEARNING: dict = {"margin": 0.05}  # 224 numbers
EXACT_WITHIN = 1e-3
"""How far a model's first output is from its base's, as a share of it: a single layer's is under 1e-4."""


def layer(base: torch.nn.Linear | None = None, **options: object) -> SquareLinear:
    return start(COMPONENT.build(LoraXsConfig(**SMALL, **options)).layer(base or linear(), place()))


def test_output_gradients_and_merged_weight_are_those_of_the_papers_formula() -> None:
    """Equation 2, with the layer's own singular vectors, whose signs are free."""
    ours = move(layer())
    compare_with_formula(ours, lambda w, p: w + 2.0 * p["lora_B"] @ p["lora_R"] @ p["lora_A"])


def test_the_frozen_two_are_the_largest_singular_directions() -> None:
    """Their product is the best approximation of rank R, and U and V are orthonormal."""
    ours, weight = layer(spaced_linear()), spaced_linear().weight.double()
    u, s, v = torch.linalg.svd(weight)
    assert_close((ours.lora_B @ ours.lora_A).double(), u[:, :4] @ torch.diag(s[:4]) @ v[:4])
    assert_close(ours.lora_A @ ours.lora_A.T, torch.eye(4))
    assert_close(ours.lora_B.norm(dim=0).double(), s[:4])


def test_only_the_square_is_trained() -> None:
    assert {name for name, each in layer().named_parameters() if each.requires_grad} == {"lora_R"}


def test_it_begins_nearly_as_the_base_and_merges_and_unmerges() -> None:
    assert 1e-7 < layer().delta_weight().norm() / linear().weight.norm() < 1e-4
    check_start_and_merge(layer(), linear(), first=1e-4)
