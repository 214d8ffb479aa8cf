"""Whose work a transform is, and what it may give. The layouts themselves: tests/optim/test_layouts.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mt_core import ComponentError
from mt_train.engine.transform import PreconditionedGradients, owners


def test_the_work_is_divided_by_size() -> None:
    shapes = [(4, 4), (8, 8), (2, 2), (8, 8), (4, 8)]
    found = owners(shapes, 2)
    loads = [sum(a * b for (a, b), owner in zip(shapes, found, strict=True) if owner == rank) for rank in range(2)]
    assert max(loads) - min(loads) <= 20
    assert owners(shapes, 1) == [0] * 5
    assert owners([], 2) == []


class DoublingTransform:
    """Twice the gradient; in another shape where told so."""

    def __init__(self, cut: int = 0) -> None:
        self.cut = cut

    def transform(self, name: str, gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
        return 2 * gradient[self.cut :]


def single_engine(**named: nn.Parameter) -> Any:
    """An engine at stage 0 on one process, as far as a transform sees it."""
    plan = SimpleNamespace(zero_stage=0, trains_weights=True, sharing_ranks=1)
    process = SimpleNamespace(rank=0, world=1, device=torch.device("cpu"))
    return SimpleNamespace(plan=plan, process=process, named_parameters=lambda: iter(named.items()))


def test_only_what_was_chosen_gets_a_direction() -> None:
    one, two, three = (nn.Parameter(torch.ones(3)) for _ in range(3))
    one.grad, two.grad = torch.ones(3), torch.ones(3)
    PreconditionedGradients(
        single_engine(one=one, two=two, three=three), DoublingTransform(), {id(one), id(three)}
    ).take()  # type: ignore[arg-type]
    assert one.grad.tolist() == [2, 2, 2]
    assert two.grad.tolist() == [1, 1, 1]
    assert three.grad is None, "no loss reached it"


def test_a_direction_of_another_shape_is_the_plugins_fault() -> None:
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    with pytest.raises(
        ComponentError, match=r"DoublingTransform gives a direction of shape \(2,\) for up, which is \(3,\)"
    ):
        PreconditionedGradients(single_engine(up=weight), DoublingTransform(1), {id(weight)}).take()  # type: ignore[arg-type]
