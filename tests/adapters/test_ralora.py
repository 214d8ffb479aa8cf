"""RaLoRA against the paper's formulas in float64."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from given_probe import Chain, GivenProbe, falling_matrix, put
from peft_layers import assert_close, check_start_and_merge, compare_with_lora, move

from mt_plugin_adapters.variants.ralora import COMPONENT
from mt_plugin_adapters.variants.ralora.adapter import Ralora, effective_rank
from mt_plugin_adapters.variants.ralora.config import RaloraConfig

SMALL: dict = {"rank": 2, "alpha": 8.0}
FURTHER: dict = {"pro": {"min_rank": 1, "max_rank": 4}}
WIDTHS = (64, 64, 24, 32, 32)
DECAYS = (0.98, 1.0, 0.9, 0.2)
"""Of the singular values of each gradient: nearly all alike, … one direction."""


def chain(**options: object) -> tuple[Chain, Ralora, list[torch.Tensor]]:
    adapter, model = COMPONENT.build(RaloraConfig(**{**SMALL, **options})), Chain(*WIDTHS)
    gradients = [falling_matrix(block, DECAYS[i], i) for i, block in enumerate(model.blocks)]
    adapter.prepare(model, GivenProbe(gradients={f"blocks.{i}.weight": each for i, each in enumerate(gradients)}))
    put(adapter, model)
    return model, adapter, gradients


def entropy_rank(matrix: torch.Tensor) -> float:
    """exp(-Σ p ln p), p the singular values over their sum."""
    values = torch.linalg.svdvals(matrix.double())
    p = values / values.sum()
    return math.exp(-float((p * p.log()).sum()))


def test_the_effective_rank_is_that_of_roy_and_vetterli() -> None:
    for gradient in chain()[2]:
        assert effective_rank(gradient) == pytest.approx(entropy_rank(gradient), rel=1e-6)
    assert effective_rank(torch.eye(7)) == pytest.approx(7.0)
    assert effective_rank(torch.zeros(3, 5)) == 1.0


def test_blocks_are_the_power_of_two_that_fills_the_effective_rank_and_divides_the_layer() -> None:
    """Effective ranks from 57 to 2 over the rank 2; 24 outputs cannot be divided by 16."""
    _, adapter, gradients = chain()
    wanted = [2 ** max(math.floor(math.log2(entropy_rank(each) / 2)), 0) for each in gradients]
    assert wanted == [16, 8, 8, 1]
    assert adapter.plan == {"blocks": {f"blocks.{i}": each for i, each in enumerate(wanted)}}
    assert list(chain(rank=1)[1].plan["blocks"].values()) == [32, 8, 8, 1], "24 is a side of the second and third"
    assert list(chain(max_blocks=5)[1].plan["blocks"].values()) == [4, 4, 4, 1]


def papers_ranks(gradients: list[torch.Tensor], least: int, most: int) -> list[int]:
    """Equations 5 to 8 in float64: I = mean |W ∘ G|, a = I / Σ I, P = Σ r √(m + n), r = [P a / √(m + n)] between both bounds."""
    weights = [block.weight.double() for block in Chain(*WIDTHS).blocks]
    importance = [(w * g.double()).abs().mean() for w, g in zip(weights, gradients, strict=True)]
    budget = sum(2 * math.sqrt(sum(w.shape)) for w in weights)
    shares = [float(budget * each / sum(importance)) for each in importance]
    return [min(max(round(a / math.sqrt(sum(w.shape))), least), most) for w, a in zip(weights, shares, strict=True)]


@pytest.mark.parametrize(("least", "most"), [(1, 4), (1, 8), (2, 3)])
def test_pro_moves_ranks_between_layers_by_importance_and_cuts_each_by_its_own(least: int, most: int) -> None:
    model, adapter, gradients = chain(min_rank=least, max_rank=most)
    ranks = papers_ranks(gradients, least, most)
    assert len(set(ranks)) > 1
    blocks = [
        math.gcd(2 ** max(math.floor(math.log2(entropy_rank(each) / rank)), 0), *block.weight.shape)
        for each, rank, block in zip(gradients, ranks, model.blocks, strict=True)
    ]
    assert list(adapter.plan["ranks"].values()) == ranks
    assert list(adapter.plan["blocks"].values()) == blocks
    for block, rank, n in zip(model.blocks, ranks, blocks, strict=True):
        outputs, inputs = block.weight.shape
        assert (block.lora_A.shape, block.lora_B.shape) == ((n * rank, inputs // n), (outputs, rank))
        assert block.scale == 4.0, "that of the rank before it was moved"
        base = Chain(*WIDTHS).blocks[list(model.blocks).index(block)]
        check_start_and_merge(block, base)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"min_rank": 2}, "set both (half and twice the rank are usual: 1 and 4), or neither"),
        ({"min_rank": 4, "max_rank": 2}, "min_rank=4 is more than max_rank=2; set min_rank to 2 or less"),
    ],
)
def test_bounds_of_ranks_come_in_pairs_and_in_order(options: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        RaloraConfig(**{**SMALL, **options})


def test_the_update_is_block_diagonal_with_the_parameters_of_a_lora_and_a_higher_rank() -> None:
    model, adapter, _ = chain()
    x = torch.randn(7, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for block, n in zip(model.blocks, adapter.plan["blocks"].values(), strict=True):
        move(block)
        outputs, inputs = block.weight.shape
        assert sum(each.numel() for _, each in block.own_parameters()) == 2 * (outputs + inputs)
        assert torch.linalg.matrix_rank(block.delta_weight()) == 2 * n
        a, b = block.lora_A.double().chunk(n), block.lora_B.double().chunk(n)
        each = [4.0 * part @ (low.T @ high.T) for part, low, high in zip(x[:, :inputs].chunk(n, 1), a, b, strict=True)]
        expected = x[:, :inputs] @ block.weight.double().T + torch.cat(each, 1)
        assert_close(block(x[:, :inputs].float()).double(), expected)


def test_in_one_block_it_is_pefts_lora() -> None:
    model, _, _ = chain(max_blocks=1)
    for block, base in zip(model.blocks, Chain(*WIDTHS).blocks, strict=True):
        compare_with_lora(block, base, rank=2, alpha=8.0)


def test_gradients_of_a_block_are_those_of_the_block_diagonal_matrix() -> None:
    """In float64 by autograd through the dense matrix."""
    block = move(chain()[0].blocks[0])
    a, b = (each.detach().double().requires_grad_() for each in (block.lora_A, block.lora_B))
    dense = torch.block_diag(*(high @ low for low, high in zip(a.chunk(16), b.chunk(16), strict=True)))
    x, grad = torch.randn(2, 5, 64), torch.randn(2, 5, 64)
    ours, theirs = x.clone().requires_grad_(), x.double().requires_grad_()
    block(ours).backward(grad)
    (theirs @ (block.weight.double() + 4.0 * dense).T).backward(grad.double())
    assert_close(ours.grad.double(), theirs.grad)
    assert_close(block.lora_A.grad.double(), a.grad)
    assert_close(block.lora_B.grad.double(), b.grad)


def test_it_begins_as_the_base_and_merges_and_unmerges() -> None:
    for block, base in zip(chain()[0].blocks, Chain(*WIDTHS).blocks, strict=True):
        check_start_and_merge(block, base)


@pytest.mark.parametrize("options", [{}, {"min_rank": 1, "max_rank": 8}], ids=["plain", "pro"])
def test_a_plan_gives_the_same_shapes_without_a_probe(options: dict[str, int]) -> None:
    model, adapter, _ = chain(**options)
    again, second = Chain(*WIDTHS), COMPONENT.build(RaloraConfig(**SMALL, **options))
    second.plan = adapter.plan
    second.inject(again)
    assert [each.shape for each in again.parameters()] == [each.shape for each in model.parameters()]
