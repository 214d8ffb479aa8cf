"""GoRA against the paper's formulas in float64."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from given_probe import Chain, GivenProbe, falling_matrix, put, with_gradients
from peft_layers import assert_close, check_start_and_merge, compare_with_lora

from mt_core import UsageError
from mt_plugin_adapters.variants.gora import COMPONENT
from mt_plugin_adapters.variants.gora.adapter import Gora
from mt_plugin_adapters.variants.gora.config import GoraConfig

SMALL: dict = {"rank": 4, "alpha": 8.0, "min_rank": 2, "max_rank": 8}
EXACT_WITHIN: float = 0.3  # the first step of full training is in A and B
WIDTHS = (24, 16, 20, 12)


def chain(**options: object) -> tuple[Chain, dict[str, torch.Tensor], Gora]:
    """Gradients of very different lengths, so that ranks meet both bounds."""
    adapter, model = COMPONENT.build(GoraConfig(**{**SMALL, **options})), Chain(*WIDTHS)
    lengths = (0.2, 1.0, 0.6)
    gradients = {
        f"blocks.{i}.weight": length * falling_matrix(block, 0.8, i)
        for i, (block, length) in enumerate(zip(model.blocks, lengths, strict=True))
    }
    adapter.prepare(model, GivenProbe(gradients=gradients))
    put(adapter, model)
    return model, gradients, adapter


def papers_ranks(gradients: dict[str, torch.Tensor], least: int, most: int) -> dict[str, int]:
    """I = mean |W ∘ G|, a = I / Σ I, budget = Σ r √(m + n), r = [budget · a / √(m + n)], held between both bounds."""
    weights = [block.weight.double() for block in Chain(*WIDTHS).blocks]
    importance = [(w * g.double()).abs().mean() for w, g in zip(weights, gradients.values(), strict=True)]
    budget = sum(4 * math.sqrt(sum(w.shape)) for w in weights)
    return {
        f"blocks.{i}": min(max(round(float(budget * each / sum(importance) / math.sqrt(sum(w.shape)))), least), most)
        for i, (w, each) in enumerate(zip(weights, importance, strict=True))
    }


@pytest.mark.parametrize(("least", "most"), [(2, 8), (1, 12), (3, 5)])
def test_ranks_follow_importance_within_the_bounds(least: int, most: int) -> None:
    _, gradients, adapter = chain(min_rank=least, max_rank=most)
    expected = papers_ranks(gradients, least, most)
    assert adapter.plan == {"ranks": expected}
    assert len(set(expected.values())) > 1


@pytest.mark.parametrize("rslora", [True, False])
def test_b_begins_as_the_pseudo_inverse_of_a_on_the_gradient(rslora: bool) -> None:
    """B₀ = -ξ G A⁺; at the scale α/√r, ξ = γ √inputs / α."""
    model, gradients, adapter = chain(gamma=0.3, rslora=rslora)
    for i, (block, gradient) in enumerate(zip(model.blocks, gradients.values(), strict=True)):
        rank, a = adapter.plan["ranks"][f"blocks.{i}"], block.lora_A.double()
        assert a.shape == (rank, WIDTHS[i])
        assert block.scale == 8.0 / (rank**0.5 if rslora else rank)
        xi = 0.3 * math.sqrt(WIDTHS[i]) / 8.0 * (1.0 if rslora else rank**0.5)
        assert_close(block.lora_B.double(), -xi * gradient.double() @ torch.linalg.pinv(a))


def test_the_update_begins_as_long_as_gamma_of_the_gradient() -> None:
    """On the mean over many A: a random subspace of r of n dimensions has r/n of a matrix's square. Here over 40 seeds, to 5 %."""
    squares = []
    for seed in range(40):
        model, gradients, _ = chain(gamma=0.5, seed=seed)
        lengths = [
            (block.delta_weight().norm() / gradient.norm()) ** 2
            for block, gradient in zip(model.blocks, gradients.values(), strict=True)
        ]
        squares.append(torch.stack(lengths))
    assert torch.allclose(torch.stack(squares).mean(0).sqrt(), torch.tensor(0.5), rtol=0.05)


def test_a_is_drawn_as_loras_and_follows_its_seed() -> None:
    one, other = chain()[0].blocks[0].lora_A, chain(seed=1)[0].blocks[0].lora_A
    assert torch.equal(one, chain()[0].blocks[0].lora_A)
    assert not torch.equal(one, other)
    assert 0.8 / math.sqrt(24) < one.abs().max() <= 1 / math.sqrt(24)


def test_output_gradients_and_merged_weight_are_those_of_pefts_lora() -> None:
    for block, base in zip(chain()[0].blocks, Chain(*WIDTHS).blocks, strict=True):
        compare_with_lora(block, base, rank=len(block.lora_A), alpha=8.0, use_rslora=True)


def test_it_begins_a_step_away_from_the_base_and_merges_and_unmerges() -> None:
    for block, base in zip(chain()[0].blocks, Chain(*WIDTHS).blocks, strict=True):
        check_start_and_merge(block, base, first=5e-3)


def test_a_plan_gives_the_same_shapes_without_a_probe() -> None:
    model, _, adapter = chain()
    again, second = Chain(*WIDTHS), COMPONENT.build(GoraConfig(**SMALL))
    second.plan = adapter.plan
    second.inject(again)
    assert [each.shape for each in again.parameters()] == [each.shape for each in model.parameters()]


def test_bounds_in_the_wrong_order_and_ranks_without_room_are_one_clear_message() -> None:
    with pytest.raises(ValueError, match="min_rank=9 is more than max_rank=8; set min_rank to 8 or less"):
        GoraConfig(min_rank=9, max_rank=8)
    with pytest.raises(UsageError, match=r"13 is more than blocks.2 has room for"):
        with_gradients(COMPONENT.build(GoraConfig(rank=13)), *WIDTHS)
