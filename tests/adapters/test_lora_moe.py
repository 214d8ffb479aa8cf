"""The mixture of LoRA experts against the papers' formulas."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from mixtures import balance, output
from paper_formulas import compare_output
from peft_layers import close, linear, moved, place, started
from shared_models import every_trained_parameter_moves
from tiny_model import injected

from mt_core import UsageError
from mt_core.adapters import adapted_layers
from mt_core.nn import LossFactor
from mt_plugin_adapters.mixture import MixtureLinear, balance_sum
from mt_plugin_adapters.variants.lora_moe import COMPONENT
from mt_plugin_adapters.variants.lora_moe.config import LoraMoeConfig

SMALL: dict = {"rank": 2, "balance": 0.0}
"""No balance loss where layouts are compared: padding counts in it, and other micro-batches have other padding."""


def layer(factor: float = 1.0, **options: object) -> MixtureLinear:
    at = replace(place(), loss_factor=LossFactor())
    at.loss_factor.value = factor
    return started(COMPONENT.build(LoraMoeConfig(**{**SMALL, "alpha": 6, **options})).layer(linear(), at))


@pytest.mark.parametrize(("experts", "top_k"), [(4, 2), (5, 3), (3, 3)])
def test_output_and_gradients_are_those_of_the_papers_formula_gate_included(experts: int, top_k: int) -> None:
    """1e-5: sums of fp32 in another order. The softmax's gradient runs through what the best are divided by, too."""
    ours = moved(layer(experts=experts, top_k=top_k))
    compare_output(ours, lambda x, w, p: output(x, w, p, rank=2, scale=6 / 2, top_k=top_k))


@pytest.mark.parametrize("top_k", [2, 3])
def test_the_gradient_of_the_balance_loss_is_that_of_its_formula(top_k: int) -> None:
    """Beside that of the output, times what the engine multiplies sums over tokens by."""
    weight, factor = 0.3, 0.05
    ours = moved(layer(factor, experts=4, top_k=top_k, balance=weight))
    generator = torch.Generator().manual_seed(8)
    x, grad = torch.randn(3, 7, 24, generator=generator), torch.randn(3, 7, 16, generator=generator)
    gate, x64 = ours.lora_gate.detach().double().requires_grad_(), x.double().requires_grad_()
    own = {name: each.detach().double() for name, each in ours.own_parameters()} | {"lora_gate": gate}
    out = output(x64, ours.base_weight().double(), own, rank=2, scale=6 / 2, top_k=top_k)
    expected = (out * grad.double()).sum() + factor * weight * balance(x64, gate, top_k)
    expected.backward()
    inputs = x.clone().requires_grad_()
    ours(inputs).backward(grad)
    close(ours.lora_gate.grad.double(), gate.grad)
    close(inputs.grad.double(), x64.grad)
    without = torch.autograd.grad((moved(layer(experts=4, top_k=top_k))(inputs) * grad).sum(), inputs)[0]
    assert ((without - inputs.grad).norm() / without.norm()).item() > 1e-4, "the balance loss is seen"


def test_the_balance_loss_is_1_a_token_for_an_even_load_and_all_experts_for_one_that_has_all() -> None:
    even = torch.eye(4).repeat(2, 3, 1)
    assert balance_sum(torch.full((2, 12, 4), 0.25), even).item() == pytest.approx(24)
    one = torch.tensor([1.0, 0, 0, 0]).expand(2, 12, 4)
    assert balance_sum(one, one).item() == pytest.approx(4 * 24)


def test_the_balance_loss_of_a_row_does_not_know_the_rows_beside_it() -> None:
    """So that micro-batches of full rows train alike, however they are divided."""
    x = torch.randn(4, 6, 24, generator=torch.Generator().manual_seed(9))
    ours = layer(experts=4)
    whole = balance_sum(*ours.routed(x))
    close(whole, sum(balance_sum(*ours.routed(part)) for part in x.chunk(2)))


def test_no_balance_loss_enters_in_evaluation_and_none_changes_the_output() -> None:
    ours, x = moved(layer(balance=0.5)), torch.randn(2, 5, 24, requires_grad=True)
    close(ours(x), moved(layer())(x), 1e-7)
    ours.eval()(x).sum().backward()
    reference = moved(layer())
    reference(x).sum().backward()
    close(ours.lora_gate.grad, reference.lora_gate.grad, 1e-7)


def test_experts_gates_and_all_else_train_and_the_load_becomes_even_with_a_balance_loss() -> None:
    unevenness = {}
    for weight in (0.0, 3.0):
        model, adapter = injected(COMPONENT.build(LoraMoeConfig(**{**SMALL, "balance": weight})))
        model.loss_factor.value = 1 / 24
        every_trained_parameter_moves(model, adapter, steps=10)
        x = torch.randn(4, 50, 32, generator=torch.Generator().manual_seed(1))
        layers = [each for _, each in adapted_layers(model) if each.in_features == 32]
        unevenness[weight] = sum((balance_sum(*each.routed(x)) / 200 - 1).item() for each in layers)
    assert unevenness[3.0] < unevenness[0.0]


def test_it_begins_as_the_base_and_says_that_it_cannot_be_merged() -> None:
    ours, x = layer(), torch.randn(3, 5, 24)
    assert torch.equal(ours(x), linear()(x))
    assert not COMPONENT.mergeable
    with pytest.raises(UsageError, match="another update for every token"):
        ours.merge()
    assert torch.equal(ours(x), linear()(x))


def test_more_choices_than_experts_are_refused_and_a_single_one_whose_gate_would_learn_nothing() -> None:
    with pytest.raises(ValueError, match="top_k=5 is more than the 4 experts"):
        LoraMoeConfig(top_k=5)
    with pytest.raises(ValueError, match="greater than or equal to 2"):
        LoraMoeConfig(top_k=1)
