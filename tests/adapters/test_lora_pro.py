"""LoRA-Pro against the paper's theorems."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))

from peft_layers import assert_close, check_start_and_merge, linear, move, place, start
from plain_engine import PlainContext

from mt_core import LowRankConfig
from mt_plugin_adapters.variants.lora_pro import COMPONENT
from mt_plugin_adapters.variants.lora_pro.adapter import LoraPro, adjust_gradients, sylvester

SMALL: dict = {"rank": 4, "alpha": 8.0}
LAYOUTS_WITHIN: float = 2e-5  # the inverse of a small Gram matrix enlarges rounding
SCALE = 2.0


def model() -> tuple[nn.Sequential, LoraPro]:
    adapter = COMPONENT.build(LowRankConfig(**SMALL))
    return nn.Sequential(start(adapter.layer(linear(), place()))), adapter


def random(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def case() -> tuple[Tensor, Tensor, Tensor]:
    """A, B, and the gradient of the weight."""
    return random(4, 24), random(16, 4, seed=4), random(16, 24, seed=5)


def solve(left: Tensor, right: Tensor, wanted: Tensor) -> Tensor:
    """X of ``left X + X right = wanted``, as 16 linear equations: rows first, they are (left ⊗ I + I ⊗ rightᵀ) vec(X)."""
    one = torch.eye(4, dtype=torch.float64)
    equations = torch.kron(left.contiguous(), one) + torch.kron(one, right.T.contiguous())
    return torch.linalg.solve(equations, wanted.flatten()).view(4, 4)


def of(a: Tensor, b: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    return tuple(each.double() for each in adjust_gradients(a, b, SCALE * b.T @ g, SCALE * g @ a.T, SCALE))


def test_gradients_are_those_of_the_papers_theorems() -> None:
    """Theorem 2.1 with the X of theorem 2.3, by the linear equations of Sylvester's."""
    a, b, g = case()
    grad_a, grad_b = SCALE * b.T @ g, SCALE * g @ a.T
    bb, aa = torch.linalg.inv(b.T @ b), torch.linalg.inv(a @ a.T)
    wanted = -bb @ grad_a @ a.T / SCALE**2
    x = solve(b.T @ b, a @ a.T, wanted)
    new_a, new_b = of(a, b, g)
    assert_close(new_a, bb @ grad_a / SCALE**2 + x @ a)
    assert_close(new_b, (torch.eye(16) - b @ bb @ b.T) @ grad_b @ aa / SCALE**2 - b @ x)


def test_the_weight_moves_as_near_to_its_own_gradient_as_a_and_b_can_move_it() -> None:
    """The objective itself: least squares over both matrices by torch."""
    a, b, g = case()
    # vec(B g_A) = (B ⊗ I) vec(g_A), vec(g_B A) = (I ⊗ Aᵀ) vec(g_B), rows first
    of_a = SCALE * torch.kron(b, torch.eye(24).double())
    of_b = SCALE * torch.kron(torch.eye(16).double(), a.T.contiguous())
    best = torch.linalg.lstsq(torch.cat([of_a, of_b], 1), g.reshape(-1, 1), driver="gelsd").solution
    nearest = (torch.cat([of_a, of_b], 1) @ best).view_as(g)
    new_a, new_b = of(a, b, g)
    assert_close(SCALE * (b @ new_a + new_b @ a), nearest)


def test_of_all_such_gradients_they_are_the_nearest_to_the_plain_ones() -> None:
    a, b, g = case()
    plain_a, plain_b = SCALE * b.T @ g, SCALE * g @ a.T
    new_a, new_b = of(a, b, g)

    def distance(x: Tensor) -> Tensor:
        return (new_a + x @ a - plain_a).square().sum() + (new_b - b @ x - plain_b).square().sum()

    x = torch.zeros(4, 4, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(distance(x), x)
    assert slope.abs().max() < 1e-3 * distance(x).item(), "fp32 results of a sum of some hundreds"
    assert distance(0.1 * random(4, 4, seed=6)) > distance(x)


def test_at_first_with_b_zero_only_b_moves_and_by_the_projected_gradient() -> None:
    a, _, g = case()
    new_a, new_b = of(a, torch.zeros(16, 4).double(), g)
    assert torch.count_nonzero(new_a) == 0
    assert_close(SCALE * new_b @ a, g @ torch.linalg.pinv(a) @ a)


@pytest.mark.parametrize("size", [1e-6, 1e-3])
def test_a_tiny_b_gives_what_the_formula_does(size: float) -> None:
    """As after a first small update."""
    a, b, g = case()
    new_a, new_b = of(a, size * b, g)
    big_a, big_b = of(a, b, g)
    assert_close(SCALE * (size * b @ new_a + new_b @ a), SCALE * (b @ big_a + big_b @ a))


def test_columns_of_b_that_differ_by_rounding_only_count_as_one() -> None:
    """Adam's first update of B is its gradient's signs, whose columns can all be alike."""
    a, b, g = case()
    alike = b[:, :1].sign() * torch.tensor([1.0, -1.0, 1.0, 1.0], dtype=torch.float64)
    first = of(a, alike + 1e-7 * random(16, 4, seed=6), g)
    second = of(a, alike + 1e-7 * random(16, 4, seed=7), g)
    for one, other in zip(first, second, strict=True):
        assert_close(one, other)


def test_sylvester_solves_its_equation() -> None:
    left, right, wanted = random(4, 4), random(4, 4, seed=4), random(4, 4, seed=5)
    left, right = left @ left.T, right @ right.T
    assert_close(sylvester(left, right, wanted), solve(left, right, wanted), 1e-9)
    x = sylvester(left, right, wanted)
    assert_close(left @ x + x @ right, wanted, 1e-9)


def test_gradients_of_a_model_are_replaced_by_those_of_the_weights_gradient() -> None:
    net, adapter = model()
    move(net[0])
    net[0].weight.requires_grad_()
    x = torch.randn(9, 24, generator=torch.Generator().manual_seed(7))
    net(x).square().mean().backward()
    a, b, g = net[0].lora_A.detach(), net[0].lora_B.detach(), net[0].weight.grad
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    adapter.after_backward(PlainContext(net, optimizer, 1, 4))
    expected = of(a.double(), b.double(), g.double())
    assert_close(net[0].lora_A.grad, expected[0].float(), 1e-4)  # inverses multiply the rounding of the plain gradients
    assert_close(net[0].lora_B.grad, expected[1].float(), 1e-4)


def test_it_begins_as_the_base_and_merges_and_unmerges() -> None:
    check_start_and_merge(model()[0][0], linear())
