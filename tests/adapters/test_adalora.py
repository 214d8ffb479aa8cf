"""AdaLoRA against peft's layer and peft's allocator of ranks, and against the paper's formulas."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from peft import AdaLoraConfig as PeftConfig
from peft.tuners.adalora.layer import RankAllocator, SVDLinear
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))

from peft_layers import assert_close, check_start_and_merge, compare, linear, move, place, start
from plain_engine import PlainContext, train

from mt_plugin_adapters.variants.adalora import COMPONENT
from mt_plugin_adapters.variants.adalora.adapter import AdaLora
from mt_plugin_adapters.variants.adalora.budget import Budget
from mt_plugin_adapters.variants.adalora.config import AdaLoraConfig
from mt_plugin_adapters.variants.adalora.layer import AdaLoraLinear, rank_scores

SMALL: dict = {"rank": 4, "alpha": 8.0, "target_rank": 2, "every_steps": 1}
STEPS = 20


def build(**options: object) -> tuple[nn.Sequential, AdaLora]:
    adapter = COMPONENT.build(AdaLoraConfig(**{**SMALL, **options}))
    return nn.Sequential(*(start(adapter.layer(linear(*size), place())) for size in ((24, 16), (16, 8)))), adapter


def batches(count: int = STEPS) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(7)
    return [(torch.randn(9, 24, generator=generator), torch.randn(9, 8, generator=generator)) for _ in range(count)]


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([each for each in net.parameters() if each.requires_grad], lr=0.5)


def peft_layer(base: nn.Linear) -> SVDLinear:
    config = PeftConfig(init_r=4, lora_alpha=8, total_step=STEPS)
    return SVDLinear(copy.deepcopy(base), "default", config=config, r=4, lora_alpha=8)


def test_output_gradients_and_merged_weight_equal_pefts() -> None:
    """peft divides by the rank and 1e-5 more, which is within the tolerance."""
    ours, theirs = move(build()[0][0]), peft_layer(linear())
    compare(ours, theirs, {part: getattr(theirs, part)["default"] for part in ("lora_A", "lora_B", "lora_E")})


def test_it_begins_as_the_base_and_merges_and_unmerges() -> None:
    check_start_and_merge(build()[0][0], linear())


def test_the_added_gradient_is_that_of_the_papers_orthogonal_term() -> None:
    """The paper's regularisation: γ (‖PᵀP - I‖² + ‖QQᵀ - I‖²), in float64 by autograd, once a step."""
    net, adapter = build(orthogonality=0.3)
    for layer in net:
        move(layer)
    x, y = batches(1)[0]
    (net(x) - y).square().mean().backward()
    plain = {name: each.grad.double() for name, each in net.named_parameters() if each.requires_grad}
    adapter.after_backward(PlainContext(net, sgd(net), 1, STEPS))
    for layer, number in zip(net, "01", strict=True):
        p, q = (each.detach().double().requires_grad_() for each in (layer.lora_B, layer.lora_A))
        identity = torch.eye(4, dtype=torch.float64)
        term = 0.3 * ((p.T @ p - identity).square().sum() + (q @ q.T - identity).square().sum())
        of_p, of_q = torch.autograd.grad(term, (p, q))
        assert_close(layer.lora_B.grad.double(), plain[f"{number}.lora_B"] + of_p)
        assert_close(layer.lora_A.grad.double(), plain[f"{number}.lora_A"] + of_q)
        assert torch.equal(layer.lora_E.grad.double(), plain[f"{number}.lora_E"])


def allocate(net: nn.Sequential) -> tuple[nn.Sequential, RankAllocator, PeftConfig]:
    """peft's layers with the values of ours, and its allocator."""
    theirs = nn.Sequential(peft_layer(linear(24, 16)), peft_layer(linear(16, 8)))
    for ours, each in zip(net, theirs, strict=True):
        for part in ("lora_A", "lora_B", "lora_E"):
            parameter = getattr(each, part)["default"]
            parameter.data.copy_(getattr(ours, part).data.reshape(parameter.shape))
    config = PeftConfig(init_r=4, target_r=2, tinit=2, tfinal=6, deltaT=3, total_step=STEPS)
    return theirs, RankAllocator(theirs, config, "default"), config


def test_importance_budget_and_pruned_ranks_are_those_of_pefts_allocator_over_a_whole_run() -> None:
    """Each update: sensitivities of the weights before it (the paper's algorithm 1), then the update, then the pruning."""
    net, adapter = build(orthogonality=0.0, every_steps=3, initial_ratio=0.1, final_ratio=0.3)
    for layer in net:
        move(layer, 0.1)
    theirs, allocator, config = allocate(net)
    optimizer, pattern, last = sgd(theirs), {}, STEPS - config.tfinal
    pruned = []
    for context, (x, y) in zip(train(net, adapter, sgd(net), batches()), batches(), strict=True):
        step = context.step
        optimizer.zero_grad()
        (theirs(x) - y).square().mean().backward()
        if step < last:
            allocator.update_ipt(theirs)
        optimizer.step()
        budget, due = allocator.budget_schedule(step)
        if step == last or (due and step < last):
            pattern = allocator.mask_to_budget(theirs, budget)
            pruned.append(sum(not each for ranks in pattern.values() for each in ranks))
        if step > last:
            allocator.mask_using_rank_pattern(theirs, pattern)
        for ours, each in zip(net, theirs, strict=True):
            assert torch.equal(ours.lora_E == 0, each.lora_E["default"].flatten() == 0), step
            assert_close(ours.lora_E, each.lora_E["default"].flatten(), 1e-3)
        for number, ours in enumerate(net):
            for part in ("lora_A", "lora_B", "lora_E"):
                known = (
                    allocator.exp_avg_ipt[f"{number}.{part}.default"],
                    allocator.exp_avg_unc[f"{number}.{part}.default"],
                )
                for kind, expected in zip(("sensitivity", "uncertainty"), known, strict=True):
                    value = getattr(ours, f"{kind}_{part}").square()
                    assert_close(value, expected.reshape(value.shape), 1e-3)
    assert pruned == sorted(pruned)
    assert pruned[-1] == 4
    assert len(set(pruned)) > 2, "the budget falls in several steps"


def test_a_ranks_importance_is_that_of_its_value_and_the_means_of_its_vectors() -> None:
    """The paper's S, written out number by number."""
    generator = torch.Generator().manual_seed(8)
    scores = {"lora_E": (4,), "lora_A": (4, 24), "lora_B": (16, 4)}
    scores = {part: torch.rand(shape, generator=generator, dtype=torch.float64) for part, shape in scores.items()}
    expected = [
        float(scores["lora_E"][i])
        + sum(float(scores["lora_B"][j, i]) for j in range(16)) / 16
        + sum(float(scores["lora_A"][i, j]) for j in range(24)) / 24
        for i in range(4)
    ]
    assert_close(rank_scores(scores), torch.tensor(expected, dtype=torch.float64), 1e-12)


def test_the_budget_is_that_of_pefts_schedule() -> None:
    config = PeftConfig(init_r=12, target_r=8, tinit=20, tfinal=60, deltaT=7, total_step=200)
    theirs = RankAllocator.__new__(RankAllocator)
    theirs.peft_config, theirs.init_bgt, theirs.target_bgt = config, 120, 80
    ours = Budget.of(AdaLoraConfig(every_steps=7), 200, 120, 10)
    assert [ours.ranks(step) for step in range(1, 201)] == [theirs.budget_schedule(step)[0] for step in range(1, 201)]
    pruning = [step for step in range(1, 140) if theirs.budget_schedule(step)[1]]
    assert [step for step in range(1, 201) if ours.prunes(step)] == [*pruning, 140]


def test_a_run_that_is_resumed_from_its_parameters_alone_prunes_the_same() -> None:
    whole, adapter = build()
    for layer in whole:
        move(layer, 0.1)
    halved = copy.deepcopy(whole)
    for _ in train(whole, adapter, sgd(whole), batches()):
        pass
    for _ in train(halved, build()[1], sgd(halved), batches()[:9], total_steps=STEPS):
        pass
    resumed, again = build()
    resumed.load_state_dict(halved.state_dict())
    for _ in train(resumed, again, sgd(resumed), batches()[9:], first=10, total_steps=STEPS):
        pass
    assert all(torch.equal(one, other) for one, other in zip(whole.parameters(), resumed.parameters(), strict=True))


def test_in_the_final_steps_exactly_the_target_is_left() -> None:
    net, adapter = build()
    left = [
        sum(int(torch.count_nonzero(layer.lora_E)) for layer in net) for _ in train(net, adapter, sgd(net), batches())
    ]
    assert left[1] == 8
    assert left[13:] == [4] * 7


def test_a_refused_step_leaves_no_trace_in_the_importance() -> None:
    net, adapter = build()
    x, y = batches(1)[0]
    (net(x) - y).square().mean().backward()
    before = copy.deepcopy(net.state_dict())
    adapter.after_backward(PlainContext(net, sgd(net), 1, STEPS))
    assert all(torch.equal(each, before[name]) for name, each in net.state_dict().items())


def test_importance_survives_half_precision() -> None:
    """Products of 1e-10 have no place in fp16 itself."""
    adapter = COMPONENT.build(AdaLoraConfig(**SMALL))
    layer = start(adapter.layer(linear().half(), place()))
    net, name = nn.Sequential(layer), "0.lora_E"
    context = PlainContext(net, sgd(net), 1, STEPS)
    adapter.sensitivities = {name: torch.full((4,), 1e-10)}
    adapter._importance(context, "0", "lora_E")
    assert_close(layer.sensitivity_lora_E.float().square(), torch.full((4,), 0.15e-10), 0.02)


def test_impossible_budgets_are_refused() -> None:
    with pytest.raises(ValueError, match="target_rank=8 is more than the first rank, 4"):
        AdaLoraConfig(ranks={"q_proj": 4})
    with pytest.raises(ValueError, match="leave no steps to prune in"):
        AdaLoraConfig(initial_ratio=0.5, final_ratio=0.5)


def test_ranks_of_their_own_count_in_the_budget() -> None:
    net, adapter = build(ranks={"down_proj": 6})
    context = SimpleNamespace(modules=net.named_modules, total_steps=STEPS)
    assert isinstance(net[0], AdaLoraLinear)
    assert adapter._budget(context).begin == 8


def test_where_the_last_pruning_update_was_refused_ranks_are_pruned_after_the_next() -> None:
    """The last is 14 of 20: here the run goes on from 15."""
    net, adapter = build(initial_ratio=0.1, final_ratio=0.3)
    kept = [
        int(sum(layer.rank_mask.sum() for layer in net))
        for _ in train(net, adapter, sgd(net), batches(3), first=15, total_steps=STEPS)
    ]
    assert kept == [4, 4, 4]
