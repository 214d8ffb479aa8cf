"""LoRA-One against the paper's formula in float64."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from given_probe import Chain, GivenProbe, put, with_gradients
from peft_layers import assert_close, check_start_and_merge, compare_with_lora

from mt_plugin_adapters.variants.lora_one import COMPONENT
from mt_plugin_adapters.variants.lora_one.config import LoraOneConfig

SMALL: dict = {"rank": 4, "alpha": 8.0}
EXACT_WITHIN: float = 0.3  # the first step of full training is in A and B
WIDTHS = (24, 16, 20)


def chain(**options: object) -> tuple[Chain, dict[str, torch.Tensor]]:
    model, gradients, _ = with_gradients(COMPONENT.build(LoraOneConfig(**SMALL, **options)), *WIDTHS)
    return model, gradients


def test_it_begins_as_the_best_matrix_of_its_rank_in_place_of_one_step() -> None:
    """W₀ + s·B₀A₀ with B₀A₀ = (1/γ) Σ over the r largest σ of u σ vᵀ of -∇L, and both halves with the root of σ/γ."""
    model, gradients = chain(gamma=3.0)
    for block, base, gradient in zip(model.blocks, Chain(*WIDTHS).blocks, gradients.values(), strict=True):
        u, s, v = torch.linalg.svd(-gradient.double(), full_matrices=False)
        a, b = block.lora_A.double(), block.lora_B.double()
        assert_close(b @ a, (u[:, :4] * s[:4]) @ v[:4] / 3.0)
        assert_close(a @ a.T, torch.diag(s[:4]) / 3.0)
        assert_close(b.T @ b, torch.diag(s[:4]) / 3.0)
        assert torch.equal(block.weight, base.weight)
        assert_close(block.merged_weight().double(), base.weight.double() + 2.0 * (u[:, :4] * s[:4]) @ v[:4] / 3.0)


def test_a_layer_that_no_row_has_reached_begins_as_loras_and_learns() -> None:
    """An expert that no token of the looked-at rows chose: with A and B both zero, neither would ever have a gradient."""
    model, adapter = Chain(*WIDTHS), COMPONENT.build(LoraOneConfig(**SMALL))
    adapter.prepare(
        model, GivenProbe(gradients={f"blocks.{i}.weight": torch.zeros(WIDTHS[i + 1], WIDTHS[i]) for i in (0, 1)})
    )
    put(adapter, model)
    x = torch.randn(5, WIDTHS[0])
    assert torch.equal(model(x), Chain(*WIDTHS)(x))
    model(x).sum().backward()
    assert all(block.lora_B.grad.any() for block in model.blocks)
    assert not torch.equal(model.blocks[0].lora_A[:, :16], model.blocks[1].lora_A)


def test_output_gradients_and_merged_weight_are_those_of_pefts_lora() -> None:
    for block, base in zip(chain()[0].blocks, Chain(*WIDTHS).blocks, strict=True):
        compare_with_lora(block, base, rank=4, alpha=8.0)


def test_it_begins_a_step_away_from_the_base_and_merges_and_unmerges() -> None:
    """The largest singular values are 0.01, which gamma and the scale make 0.02 / 128 of; the weight's are about 1."""
    for block, base in zip(chain()[0].blocks, Chain(*WIDTHS).blocks, strict=True):
        check_start_and_merge(block, base, first=1e-3)
