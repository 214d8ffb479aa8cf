"""The mixture of LoRA experts against the papers' formulas."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from mixtures import balance, output
from paper_formulas import compare_output
from peft_layers import assert_close, linear, move, place, start
from shared_models import every_trained_parameter_moves
from tiny_model import inject

from mt_core import Sample, UsageError
from mt_core.adapters import adapted_layers
from mt_core.nn import Batch, LossFactor, TokenObjective
from mt_core.nn.collation import collate, flatten
from mt_plugin_adapters.mixture import MixtureLinear, balance_sum
from mt_plugin_adapters.variants.lora_moe import COMPONENT
from mt_plugin_adapters.variants.lora_moe.config import LoraMoeConfig

SMALL: dict = {"rank": 2, "balance": 0.3}
"""So much of it that layouts would differ if padding, or how rows are divided, changed it."""


def layer(factor: float = 1.0, **options: object) -> MixtureLinear:
    at = replace(place(), loss_factor=LossFactor())
    at.loss_factor.value = factor
    return start(
        COMPONENT.build(LoraMoeConfig(**{"rank": 2, "balance": 0.0, "alpha": 6, **options})).layer(linear(), at)
    )


def gradients(batch: Batch, *, recompute: bool = False) -> dict[str, Tensor]:
    """Of what a step trains on these rows, by name."""
    model, _ = inject(COMPONENT.build(LoraMoeConfig(**SMALL)))
    for _, each in adapted_layers(model):
        move(each, 0.1)
    model.checkpoint_blocks = recompute
    sums = TokenObjective().loss(model.train()(batch), model.head, batch)
    model.loss_factor.value = 1 / float(sums.token_count)
    (sums.loss_sum / sums.token_count).backward()
    return {name: each.grad for name, each in model.named_parameters() if each.requires_grad}


def rows(length: int) -> Batch:
    """Three rows of which the first tokens are not trained, padded to this length, and one of padding alone."""
    generator, found = torch.Generator().manual_seed(4), []
    for size in (5, 9, 3):
        trained = [number > 1 for number in range(size)]
        found.append([Sample(torch.randint(3, 31, (size,), generator=generator).tolist(), trained, "")])
    return collate(flatten([*found, []]), length=length, pad_id=0)


@pytest.mark.parametrize(("experts", "top_k"), [(4, 2), (5, 3), (3, 3)])
def test_output_and_gradients_are_those_of_the_papers_formula_gate_included(experts: int, top_k: int) -> None:
    """1e-5: sums of fp32 in another order. The softmax's gradient runs through what the best are divided by, too."""
    ours = move(layer(experts=experts, top_k=top_k))
    compare_output(ours, lambda x, w, p: output(x, w, p, rank=2, scale=6 / 2, top_k=top_k))


@pytest.mark.parametrize("top_k", [2, 3])
def test_the_gradient_of_the_balance_loss_is_that_of_its_formula(top_k: int) -> None:
    """Beside that of the output, times what the engine multiplies sums over tokens by."""
    weight, factor = 0.3, 0.05
    ours = move(layer(factor, experts=4, top_k=top_k, balance=weight))
    generator = torch.Generator().manual_seed(8)
    x, grad = torch.randn(3, 7, 24, generator=generator), torch.randn(3, 7, 16, generator=generator)
    gate, x64 = ours.lora_gate.detach().double().requires_grad_(), x.double().requires_grad_()
    own = {name: each.detach().double() for name, each in ours.own_parameters()} | {"lora_gate": gate}
    out = output(x64, ours.base_weight().double(), own, rank=2, scale=6 / 2, top_k=top_k)
    expected = (out * grad.double()).sum() + factor * weight * balance(x64, gate, top_k)
    expected.backward()
    inputs = x.clone().requires_grad_()
    ours(inputs).backward(grad)
    assert_close(ours.lora_gate.grad.double(), gate.grad)
    assert_close(inputs.grad.double(), x64.grad)
    without = torch.autograd.grad((move(layer(experts=4, top_k=top_k))(inputs) * grad).sum(), inputs)[0]
    assert ((without - inputs.grad).norm() / without.norm()).item() > 1e-4, "the balance loss is seen"


def test_the_balance_loss_is_1_a_token_for_an_even_load_and_all_experts_for_one_that_has_all() -> None:
    even = torch.eye(4).repeat(2, 3, 1)
    assert balance_sum(torch.full((2, 12, 4), 0.25), even, torch.ones(2, 12)).item() == pytest.approx(24)
    one = torch.tensor([1.0, 0, 0, 0]).expand(2, 12, 4)
    assert balance_sum(one, one, torch.ones(2, 12)).item() == pytest.approx(4 * 24)


def test_the_balance_loss_of_a_row_does_not_know_the_rows_beside_it() -> None:
    """So that micro-batches of full rows train alike, however they are divided."""
    x = torch.randn(4, 6, 24, generator=torch.Generator().manual_seed(9))
    ours = layer(experts=4)
    whole, half = (balance_sum(*ours.route(part), torch.ones(len(part), 6)) for part in (x, x[:2]))
    assert_close(whole, half + balance_sum(*ours.route(x[2:]), torch.ones(2, 6)))


def test_more_padding_changes_no_gradient() -> None:
    """Nor does a recomputation of the blocks."""
    expected = gradients(rows(9))
    for batch, recompute in ((rows(20), False), (rows(20), True)):
        for name, each in gradients(batch, recompute=recompute).items():
            assert_close(each, expected[name])


def test_the_balance_loss_of_a_row_with_padding_is_the_formulas_over_its_trained_tokens() -> None:
    """Written out token by token on the rows without what is not trained."""
    ours, x = layer(experts=4), torch.randn(2, 7, 24, generator=torch.Generator().manual_seed(9))
    counts = torch.tensor([[0, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1, 0]])
    parts = [
        balance(row[mask > 0][None].double(), ours.lora_gate.double(), 2) for row, mask in zip(x, counts, strict=True)
    ]
    assert_close(balance_sum(*ours.route(x), counts.float()).double(), sum(parts))


def test_parts_of_a_row_on_several_ranks_have_the_balance_loss_of_the_whole() -> None:
    """What experts were chosen is added up over them; the rest is a sum over tokens."""
    ours, x = layer(experts=4), torch.randn(2, 6, 24, generator=torch.Generator().manual_seed(9))
    routed, counts = [ours.route(part) for part in x.chunk(2, 1)], torch.ones(2, 3)
    chosen = sum((weights > 0).float().sum(1, keepdim=True) for _, weights in routed)
    parts = [balance_sum(*each, counts, lambda own: chosen) for each in routed]
    assert_close(sum(parts), balance_sum(*ours.route(x), torch.ones(2, 6)))


def test_inputs_that_are_not_one_for_each_token_are_refused() -> None:
    model, _ = inject(COMPONENT.build(LoraMoeConfig(**SMALL)))
    projection = next(each for _, each in adapted_layers(model))
    model.train()(rows(9))
    with pytest.raises(UsageError, match="the balance loss counts trained tokens"):
        projection(torch.randn(7, 32))


def test_no_balance_loss_enters_in_evaluation_and_none_changes_the_output() -> None:
    ours, x = move(layer(balance=0.5)), torch.randn(2, 5, 24, requires_grad=True)
    assert_close(ours(x), move(layer())(x), 1e-7)
    ours.eval()(x).sum().backward()
    reference = move(layer())
    reference(x).sum().backward()
    assert_close(ours.lora_gate.grad, reference.lora_gate.grad, 1e-7)


def test_experts_gates_and_all_else_train_and_the_load_becomes_even_with_a_balance_loss() -> None:
    unevenness = {}
    for weight in (0.0, 3.0):
        model, adapter = inject(COMPONENT.build(LoraMoeConfig(**{**SMALL, "balance": weight})))
        model.loss_factor.value = 1 / 24
        every_trained_parameter_moves(model, adapter, steps=10)
        x = torch.randn(4, 50, 32, generator=torch.Generator().manual_seed(1))
        layers = [each for _, each in adapted_layers(model) if each.in_features == 32]
        unevenness[weight] = sum((balance_sum(*each.route(x), torch.ones(4, 50)) / 200 - 1).item() for each in layers)
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
