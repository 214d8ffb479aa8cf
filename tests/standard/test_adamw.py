"""AdamW against torch's, against the paper in float64, and against itself on other slices of the same weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor, nn

SHAPES = [(33, 7), (16, 32), (5,), (), (1, 3, 3), (64,)]


def parameters(seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def take_steps(optimizer: torch.optim.Optimizer, weights: Sequence[Tensor], steps: int = 6, seed: int = 1) -> None:
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator) * 10.0 ** (-step)
        optimizer.step()


def groups_of(weights: Sequence[Tensor]) -> list[dict[str, Any]]:
    return [
        {"name": "decay", "params": list(weights[:2]), "weight_decay": 0.3, "lr": 1e-2},
        {"name": "rest", "params": list(weights[2:])},
    ]


@pytest.mark.parametrize("fused", [True, False])
def test_updates_and_state_equal_those_of_torch(build: Any, fused: bool) -> None:
    mine, theirs = parameters(), parameters()
    values = {"lr": 3e-3, "beta1": 0.8, "beta2": 0.9, "eps": 1e-6, "weight_decay": 0.1, "fused": fused}
    optimizer = build("optimizer", "adamw", values, groups_of(mine))
    reference = torch.optim.AdamW(
        groups_of(theirs), lr=3e-3, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1, foreach=False
    )
    take_steps(optimizer, mine)
    take_steps(reference, theirs)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
        assert optimizer.state[a].keys() == reference.state[b].keys()
        for key, value in reference.state[b].items():
            torch.testing.assert_close(optimizer.state[a][key], value, rtol=1e-6, atol=1e-8)
    assert [group["name"] for group in optimizer.param_groups] == ["decay", "rest"]
    assert isinstance(optimizer, torch.optim.AdamW)


def test_updates_equal_the_paper_in_float64(build: Any) -> None:
    """Algorithm 2 of https://arxiv.org/abs/1711.05101, with the schedule's multiplier inside the rate."""
    rate, beta1, beta2, eps, decay = 3e-3, 0.9, 0.95, 1e-8, 0.1
    weights = parameters()
    expected = [weight.detach().double() for weight in weights]
    means, squares = ([torch.zeros_like(weight) for weight in expected] for _ in range(2))
    optimizer = build("optimizer", "adamw", {"lr": rate}, [{"params": weights}])
    generator = torch.Generator().manual_seed(3)
    for t in range(1, 11):
        for index, weight in enumerate(weights):
            weight.grad = torch.randn(weight.shape, generator=generator)
            gradient = weight.grad.double()
            means[index] = beta1 * means[index] + (1 - beta1) * gradient
            squares[index] = beta2 * squares[index] + (1 - beta2) * gradient**2
            direction = (means[index] / (1 - beta1**t)) / ((squares[index] / (1 - beta2**t)).sqrt() + eps)
            expected[index] = expected[index] - rate * direction - rate * decay * expected[index]
        optimizer.step()
    for weight, value in zip(weights, expected, strict=True):
        torch.testing.assert_close(weight.double(), value, rtol=1e-5, atol=1e-6)


def update(build: Any, fused: bool, whole: Tensor, gradients: list[Tensor], cuts: list[int]) -> Tensor:
    weights = [nn.Parameter(piece.clone()) for piece in whole.split(cuts)]
    optimizer = build("optimizer", "adamw", {"lr": 1e-2, "fused": fused}, [{"params": weights}])
    for gradient in gradients:
        for weight, piece in zip(weights, gradient.split(cuts), strict=True):
            weight.grad = piece.clone()
        optimizer.step()
    state = [torch.cat([optimizer.state[weight][key] for weight in weights]) for key in ("exp_avg", "exp_avg_sq")]
    return torch.stack([torch.cat([weight.detach() for weight in weights]), *state])


@pytest.mark.parametrize("fused", [True, False])
@given(st.lists(st.integers(1, 3000), min_size=1, max_size=30), st.integers(0, 1000))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bits_do_not_depend_on_how_the_weights_are_cut(build: Any, fused: bool, cuts: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randn(sum(cuts), generator=generator)
    gradients = [torch.randn(sum(cuts), generator=generator) * 10.0**-step for step in range(4)]
    one = update(build, fused, whole, gradients, [sum(cuts)])
    assert torch.equal(update(build, fused, whole, gradients, cuts), one)


@pytest.mark.parametrize("threads", [2, 3])
def test_bits_do_not_depend_on_the_number_of_threads(build: Any, threads: int) -> None:
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(200_003, generator=generator)
    gradients = [torch.randn(200_003, generator=generator) for _ in range(3)]
    before = torch.get_num_threads()
    results = []
    try:
        for count in (1, threads):
            torch.set_num_threads(count)
            results.append(update(build, True, whole, gradients, [len(whole)]))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)


def test_weights_out_of_memory_order_are_updated_too(build: Any) -> None:
    plain = torch.randn(24, 40, generator=torch.Generator().manual_seed(0))
    straight, turned = nn.Parameter(plain.clone()), nn.Parameter(plain.t().contiguous().t())
    assert not turned.is_contiguous()
    for weight in (straight, turned):
        take_steps(build("optimizer", "adamw", {"lr": 1e-2}, [{"params": [weight]}]), [weight])
    assert torch.equal(straight, turned)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes_are_updated_as_torch_updates_them(build: Any, dtype: torch.dtype) -> None:
    mine, theirs = ([nn.Parameter(torch.ones(37, dtype=dtype))] for _ in range(2))
    optimizer = build("optimizer", "adamw", {"lr": 1e-2}, [{"params": mine}])
    reference = torch.optim.AdamW(theirs, lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)
    for _ in range(3):
        mine[0].grad, theirs[0].grad = (torch.linspace(-1, 1, 37).to(dtype) for _ in range(2))
        optimizer.step()
        reference.step()
    torch.testing.assert_close(mine[0], theirs[0])


def test_a_parameter_without_gradient_stays_and_has_no_state(build: Any) -> None:
    weights = parameters()
    before = weights[0].clone()
    optimizer = build("optimizer", "adamw", {}, [{"params": weights}])
    take_steps(optimizer, weights[1:])
    assert torch.equal(weights[0], before)
    assert weights[0] not in optimizer.state
    assert build("optimizer", "adamw", {}, [{"params": parameters()}]).step(lambda: 2.5) == 2.5


def test_saved_state_continues_bit_for_bit_also_in_torchs_own_adamw(build: Any) -> None:
    weights = parameters()
    optimizer = build("optimizer", "adamw", {}, [{"params": weights}])
    take_steps(optimizer, weights, steps=3)
    copied = copy.deepcopy(weights)
    resumed = build("optimizer", "adamw", {}, [{"params": copied}])
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    other = copy.deepcopy(weights)
    foreign = torch.optim.AdamW(other)
    foreign.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for engine, tensors in ((optimizer, weights), (resumed, copied), (foreign, other)):
        take_steps(engine, tensors, seed=9)
    assert all(torch.equal(a, b) for a, b in zip(weights, copied, strict=True))
    for a, b in zip(weights, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "values", [{"lr": 0}, {"lr": 2}, {"beta1": 1.0}, {"beta2": -0.1}, {"eps": 0}, {"weight_decay": -1}, {"fused": 1}]
)
def test_values_out_of_bounds_are_refused(component: Any, values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        component("optimizer", "adamw").config(**values)


def test_a_rate_from_yaml_is_read_as_a_number(component: Any) -> None:
    assert component("optimizer", "adamw").config(lr="2e-4").lr == 2e-4
