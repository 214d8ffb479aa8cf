"""A mixture in the place of an MLP, and its balance loss beside transformers'."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from mt_core import ExpertLayout, RouterOptions
from mt_core.nn import (
    BlockContext,
    Choice,
    Experts,
    LossFactor,
    Mixture,
    Router,
    SdpaAttention,
    StepSums,
    balance_by_bias,
    balance_loss,
)

B, T, D, X = 2, 5, 8, 4


def context(labels_BT: Tensor | None = None, rows: int = B) -> BlockContext:
    positions = torch.arange(T).expand(rows, T)
    return BlockContext(positions, torch.zeros_like(positions), SdpaAttention(), labels_BT=labels_BT)


def router(top_k: int = 2) -> Router:
    made = Router(RouterOptions(n_experts=X, top_k=top_k), D)
    nn.init.normal_(made.weight, generator=torch.Generator().manual_seed(0))
    return made


def hidden(rows: int = B) -> Tensor:
    return torch.randn(rows, T, D, generator=torch.Generator().manual_seed(1))


def mixture(balance: float = 0.0, factor: LossFactor | None = None) -> Mixture:
    made = Mixture(
        router(), Experts(ExpertLayout(n_experts=X, width=D, hidden=8)), index=0, balance=balance, factor=factor
    )
    for each in made.experts.parameters():
        nn.init.normal_(each, generator=torch.Generator().manual_seed(2))
    return made


@pytest.mark.parametrize("top_k", [1, 2])
def test_the_loss_of_a_row_is_transformers_over_top_k_times_its_tokens(top_k: int) -> None:
    from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

    gate, x_BTD = router(top_k), hidden(rows=1)
    logits = x_BTD[0] @ gate.weight.T
    theirs = load_balancing_loss_func((logits,), X, top_k)
    assert balance_loss(gate(x_BTD[0]), context(rows=1)).item() == pytest.approx(float(theirs) / top_k * T)


def test_a_row_counts_by_itself_and_tokens_that_are_not_trained_do_not() -> None:
    labels = torch.zeros(B, T, dtype=torch.long)
    labels[1, 3:] = -100
    gate, x_BTD = router(), hidden()
    both = balance_loss(gate(x_BTD.flatten(0, 1)), context(labels))
    first = balance_loss(gate(x_BTD[0]), context(rows=1))
    second = gate(x_BTD[1, :3])
    shorter = replace(context(rows=1), positions_BT=torch.arange(3)[None])
    assert float(both) == pytest.approx(float(first) + float(balance_loss(second, shorter)))


def test_an_even_load_costs_one_a_token_and_a_single_expert_as_many_as_there_are() -> None:
    even = Choice(torch.arange(X).repeat(T)[:, None], torch.ones(X * T, 1), torch.full((X * T, X), 1 / X))
    positions = torch.zeros(1, X * T, dtype=torch.long)
    rows = BlockContext(positions, positions, SdpaAttention())
    assert float(balance_loss(even, rows)) == pytest.approx(X * T)
    one = Choice(torch.zeros(X * T, 1, dtype=torch.long), torch.ones(X * T, 1), torch.eye(X)[:1].repeat(X * T, 1))
    assert float(balance_loss(one, rows)) == pytest.approx(X * X * T)


def test_the_balance_loss_adds_its_gradient_times_the_factor_and_changes_no_output() -> None:
    factor = LossFactor()
    factor.value = 0.5
    plain, balanced = mixture(), mixture(0.1, factor)
    outputs = [each(hidden(), context()) for each in (plain, balanced)]
    assert torch.equal(*outputs)
    for each in outputs:
        each.sum().backward()
    gate = router()
    (0.1 * 0.5 * balance_loss(gate(hidden().flatten(0, 1)), context())).backward()
    added = balanced.router.weight.grad - plain.router.weight.grad
    assert float((added - gate.weight.grad).abs().max()) <= 1e-5
    assert float(gate.weight.grad.abs().max()) > 1e-3


def test_what_every_token_gets_is_added() -> None:
    shared = nn.Linear(D, D)
    made = mixture()
    with_shared = Mixture(made.router, made.experts, index=0, shared=shared)  # type: ignore[arg-type]
    x_BTD = hidden()
    assert torch.allclose(with_shared(x_BTD, context()), made(x_BTD, context()) + shared(x_BTD))
    assert "shared_experts.weight" in with_shared.state_dict()


def test_figures_say_how_the_load_of_trained_tokens_is_spread() -> None:
    labels = torch.zeros(1, T, dtype=torch.long)
    labels[0, 4:] = -100
    made, sums = mixture(), StepSums()
    with torch.no_grad():
        made.router.weight.copy_(100 * torch.eye(X, D))
    x_BTD = torch.eye(X, D)[[0, 0, 0, 1, 3]][None] + 0.5 * torch.eye(X, D)[[1, 1, 1, 0, 2]][None]
    with sums.collecting():
        made(x_BTD, replace(context(labels, rows=1), sums=sums))
    counts_X = sums.gathered["experts.0"]
    assert counts_X.tolist() == [4, 4, 0, 0]
    found = {name: float(value) for name, value in sums.figures_of["experts.0"](counts_X).items()}
    assert found == {"router_busiest": X / 2, "router_idlest": 0, "router_dead": 2}
    total, count = sums.figures["router_entropy"]
    assert float(total / count) == pytest.approx(1 / X, abs=1e-6)


class Step:
    """The context of a step with one mixture."""

    def __init__(self, module: Mixture, counts_X: Tensor) -> None:
        self.module, self.counts_X = module, counts_X

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        return iter([("mlp", self.module)])

    def step_sum(self, name: str) -> Tensor:
        return {self.module.choices: self.counts_X}[name]

    def read(self, name: str) -> Tensor:
        return self.module.get_parameter(name.removeprefix("mlp.")).detach().clone()

    def write(self, name: str, value: Tensor) -> None:
        self.module.get_parameter(name.removeprefix("mlp.")).data.copy_(value)


def test_a_bias_goes_up_for_the_idle_and_down_for_the_busy() -> None:
    options = RouterOptions(n_experts=X, top_k=1, gate="sigmoid", choice_bias=True)
    made = Mixture(Router(options, D), Experts(ExpertLayout(n_experts=X, width=D, hidden=8)), index=3)
    balance_by_bias(Step(made, torch.tensor([8, 2, 4, 2.0])), 0.25)  # type: ignore[arg-type]
    assert made.router.e_score_correction_bias is not None
    assert made.router.e_score_correction_bias.tolist() == [-0.25, 0.25, 0, 0.25]
