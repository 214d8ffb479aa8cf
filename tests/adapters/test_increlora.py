"""IncreLoRA against the formulas of its paper and of its authors' code."""

from __future__ import annotations

import copy
import math
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).parent))

from paper_formulas import compare_with_formula
from peft_layers import assert_close, check_start_and_merge, linear, move, place, start
from plain_engine import PlainContext, train

from mt_plugin_adapters.variants.increlora import COMPONENT
from mt_plugin_adapters.variants.increlora.adapter import IncreLora
from mt_plugin_adapters.variants.increlora.config import IncreLoraConfig
from mt_plugin_adapters.variants.increlora.layer import IncreLoraLinear

SMALL: dict = {
    "alpha": 4.0,
    "target_rank": 2,
    "max_rank": 6,
    "grow_by": 2,
    "top": 3,
    "warmup_steps": 0,
    "every_steps": 1,
}
LEARNING: dict = {"options": {"target_rank": 4, "max_rank": 8, "top": 2, "warmup_steps": 20, "every_steps": 10}}
STEPS = 12
ALPHA, SIZES = 8.0, ((24, 16), (16, 20), (20, 8))
GROWTH = {"alpha": ALPHA, "target_rank": 3, "max_rank": 6, "grow_by": 2, "top": 1, "warmup_steps": 2, "every_steps": 2}


def build(**options: object) -> tuple[nn.Sequential, IncreLora]:
    adapter = COMPONENT.build(IncreLoraConfig(**{**GROWTH, **options}))
    return nn.Sequential(*(start(adapter.layer(linear(*size), place())) for size in SIZES)), adapter


def batches(count: int = STEPS) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(7)
    return [(torch.randn(9, 24, generator=generator), torch.randn(9, 8, generator=generator)) for _ in range(count)]


def adam(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam([each for each in net.parameters() if each.requires_grad], lr=0.02)


def counts(net: nn.Sequential) -> list[int]:
    return [int(layer.rank_mask.sum()) for layer in net]


def stir(net: nn.Sequential, scale: float = 0.1) -> nn.Sequential:
    """As after some training, in which ranks that a layer has not yet have kept their λ."""
    for layer in net:
        first = layer.lora_E.detach().clone()
        move(layer, scale)
        layer.lora_E.data.copy_(torch.where(layer.rank_mask > 0, layer.lora_E, first))
    return net


def grow(rank: int) -> IncreLoraLinear:
    """A layer that has been given some ranks, with other values."""
    layer = start(build(rank=rank, target_rank=6)[1].layer(linear(), place()))
    with torch.no_grad():
        layer.lora_E += 0.3 * torch.randn(6, generator=torch.Generator().manual_seed(5)) * layer.rank_mask
    return layer


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("root", [False, True])
def test_output_gradients_and_merged_weight_are_those_of_the_formula(rank: int, root: bool) -> None:
    """(alpha / r) · Σ λ_i b_i a_iᵀ over the ranks that it has, and 1e-5 in the place of λ for those in reserve."""
    layer = grow(rank)
    layer.root = root

    def weight(base: Tensor, own: dict[str, Tensor]) -> Tensor:
        values = [own["lora_E"][i] if i < rank else 1e-5 * (i < rank + 2) for i in range(6)]
        total = sum(values[i] * torch.outer(own["lora_B"][:, i], own["lora_A"][i]) for i in range(6))
        return base + ALPHA / (math.sqrt(rank) if root else rank) * total

    compare_with_formula(layer, weight)
    assert layer.lora_A.grad[rank + 2 :].abs().max() == 0, "of what it has not there is nothing to learn"
    assert layer.lora_A.grad[rank : rank + 2].abs().min() > 0, "what is in reserve learns"


def test_it_begins_within_its_reserve_of_the_base_and_merges_and_unmerges() -> None:
    """λ of 1e-5 times vectors of 0.02: nothing of it is left beside an output of about 1."""
    layer = grow(2)
    with torch.no_grad():
        layer.lora_E.copy_(layer.reserved_scales(2))
    check_start_and_merge(layer, linear(), first=1e-6)


def test_importance_is_that_of_the_authors_code_over_a_whole_run() -> None:
    """S = Σ|ΔW ∘ dL/dΔW| / √(inputs · outputs) with the dense gradient by autograd, then two running means."""
    net, adapter = build(orthogonality=0.0, target_rank=6)
    stir(net)
    optimizer, means, deviations = adam(net), [0.0] * 3, [0.0] * 3
    for step, (x, y) in enumerate(batches(6), 1):
        deltas, out = [layer.delta_weight().detach().double().requires_grad_() for layer in net], x.double()
        for layer, delta in zip(net, deltas, strict=True):
            out = out @ (layer.weight.double() + delta).T + layer.bias.double()
        (out - y.double()).square().mean().backward()
        scores = [float((each.detach() * each.grad).abs().sum()) / math.sqrt(each.numel()) for each in deltas]
        optimizer.zero_grad()
        (net(x) - y).square().mean().backward()
        context = PlainContext(net, optimizer, step, 100)
        adapter.after_backward(context)
        optimizer.step()
        adapter.after_step(context)
        for i, (layer, score) in enumerate(zip(net, scores, strict=True)):
            means[i] = 0.85 * means[i] + 0.15 * score
            deviations[i] = 0.85 * deviations[i] + 0.15 * abs(score - means[i])
            assert_close(layer.importance.square(), torch.tensor([means[i]]), 1e-4)
            assert_close(layer.uncertainty.square(), torch.tensor([deviations[i]]), 1e-3)


def test_the_most_important_layer_grows_at_the_steps_of_the_schedule_until_the_target() -> None:
    """Each time the one whose product of the two means is largest, of those with room; nine ranks, of which three were there."""
    net, adapter = build()
    history = [counts(net)]
    for context in train(net, adapter, adam(net), batches(), total_steps=STEPS):
        now, scores = counts(net), [float((each.importance * each.uncertainty).square()) for each in net]
        changed = [i for i in range(3) if now[i] != history[-1][i]]
        if context.step in (4, 6, 8):
            open_ones = [i for i in range(3) if history[-1][i] < 6]
            assert changed == [max(open_ones, key=scores.__getitem__)], context.step
            assert now[changed[0]] - history[-1][changed[0]] == min(
                2, 6 - history[-1][changed[0]], 9 - sum(history[-1])
            )
        else:
            assert not changed, context.step
        history.append(now)
    assert sum(history[-1]) == 9
    assert not any(layer.watched for layer in net)


def test_a_layer_without_room_lets_others_grow() -> None:
    """Nine ranks, and at most three in each of three layers: one grows at each of three steps."""
    net, adapter = build(max_rank=3)
    sums = [sum(counts(net)) for _ in train(net, adapter, adam(net), batches(), total_steps=STEPS)]
    assert sums[3::2] == [5, 7, 9, 9, 9]


def test_a_rank_that_is_given_goes_on_from_its_reserve_and_what_is_left_in_reserve_ends_at_0() -> None:
    net, adapter = build(target_rank=3)
    before = {i: layer.lora_A.detach().clone() for i, layer in enumerate(net)}
    for context in train(net, adapter, adam(net), batches(), total_steps=STEPS):
        if context.step == 4:
            layer = next(each for each in net if each.rank_mask.sum() == 3)
            assert torch.equal(layer.lora_E[1:3], torch.tensor([1e-5, 1e-5])), "they begin to learn where they were"
            assert torch.equal(layer.lora_E[3:5], torch.tensor([1e-5, 1e-5])), "there is a new reserve"
            first = before[list(net).index(layer)]
            assert (layer.lora_A[1:3] - first[1:3]).abs().max() > 0.01, "the reserve has learned in advance"
            assert torch.equal(layer.lora_A[3:], first[3:])
    for layer in net:
        rank = int(layer.rank_mask.sum())
        assert layer.lora_E[:rank].abs().min() > 1e-4
        assert layer.lora_E[rank:].abs().max() == 0


def test_the_gradient_of_the_weight_is_summed_over_micro_batches_before_its_absolute_value() -> None:
    """One batch, or its parts one after the other; recomputed, too."""
    (x, y), found = batches(1)[0], []
    for parts, recomputed in ((1, False), (3, False), (1, True)):
        net, adapter = build()
        stir(net)
        optimizer = adam(net)
        for part_x, part_y in zip(x.chunk(parts), y.chunk(parts), strict=True):
            out = checkpoint(net, part_x, use_reentrant=False) if recomputed else net(part_x)
            ((out - part_y).square().sum() / y.numel()).backward()
        context = PlainContext(net, optimizer, 1, STEPS)
        adapter.after_backward(context)
        assert all(layer.gathered is None for layer in net), "nothing is kept between steps"
        found.append(torch.cat(list(adapter.seen.values())))
    assert_close(found[1], found[0])
    assert_close(found[2], found[0], 1e-7)


def test_the_added_gradient_is_that_of_the_orthogonal_term_of_what_is_there_or_in_reserve() -> None:
    net, adapter = build(orthogonality=0.3)
    stir(net, 0.3)
    x, y = batches(1)[0]
    (net(x) - y).square().mean().backward()
    plain = {name: each.grad.double() for name, each in net.named_parameters() if each.requires_grad}
    adapter.after_backward(PlainContext(net, adam(net), 1, STEPS))
    for number, layer in enumerate(net):
        a, b = (each.detach().double().requires_grad_() for each in (layer.lora_A, layer.lora_B))
        identity = torch.eye(3, dtype=torch.float64)
        term = (a[:3] @ a[:3].T - identity).square().sum() + (b[:, :3].T @ b[:, :3] - identity).square().sum()
        of_a, of_b = torch.autograd.grad(0.3 * term, (a, b))
        assert_close(layer.lora_A.grad.double(), plain[f"{number}.lora_A"] + of_a)
        assert_close(layer.lora_B.grad.double(), plain[f"{number}.lora_B"] + of_b)


def test_a_run_that_is_resumed_from_its_parameters_alone_grows_the_same_to_the_bit() -> None:
    whole, adapter = build()
    halved = copy.deepcopy(whole)
    sgd = lambda net: torch.optim.SGD([each for each in net.parameters() if each.requires_grad], lr=0.5)  # noqa: E731
    for _ in train(whole, adapter, sgd(whole), batches()):
        pass
    for stop in (5, 10):
        part, resumed = copy.deepcopy(halved), build()[0]
        for _ in train(part, build()[1], sgd(part), batches()[:stop], total_steps=STEPS):
            pass
        resumed.load_state_dict(part.state_dict())
        for _ in train(resumed, build()[1], sgd(resumed), batches()[stop:], first=stop + 1, total_steps=STEPS):
            pass
        assert all(torch.equal(one, other) for one, other in zip(whole.parameters(), resumed.parameters(), strict=True))


def test_a_refused_step_leaves_no_trace_in_the_importance() -> None:
    net, adapter = build()
    x, y = batches(1)[0]
    (net(x) - y).square().mean().backward()
    before = copy.deepcopy(net.state_dict())
    adapter.after_backward(PlainContext(net, adam(net), 1, STEPS))
    assert all(torch.equal(each, before[name]) for name, each in net.state_dict().items())


def test_an_evaluation_gathers_nothing() -> None:
    net, _ = build()
    net.eval()(batches(1)[0][0]).sum().backward()
    assert all(layer.gathered is None for layer in net)


def test_impossible_budgets_are_refused() -> None:
    with pytest.raises(ValueError, match="target_rank=8 is less than the first rank, 9"):
        IncreLoraConfig(ranks={"q_proj": 9})
    with pytest.raises(ValueError, match="target_rank=40 is more than max_rank=32"):
        IncreLoraConfig(target_rank=40)
