"""An optimizer's state is counted by asking the optimizer, whoever wrote it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from mt_train.planning.moments import state_bytes


def names_of(groups: list[dict[str, Any]]) -> dict[int, str]:
    """Name the parameters as those of one block."""
    parameters = [each for group in groups for each in group["params"]]
    return {id(each): f"model.layers.{place}.weight" for place, each in enumerate(parameters)}


class FactoredOptimizer(torch.optim.Optimizer):
    """Keeps a number for each row and column of a matrix."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, {"lr": 1.0})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["sums"] = [None]
                self.state[parameter]["rows"] = torch.zeros(sum(parameter.shape))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda groups: torch.optim.AdamW(groups, lr=1.0), 8.0),
        (lambda groups: torch.optim.AdamW(groups, lr=1.0, amsgrad=True), 12.0),
        (lambda groups: torch.optim.SGD(groups, lr=1.0), 0.0),
        (lambda groups: torch.optim.SGD(groups, lr=1.0, momentum=0.9), 4.0),
        (lambda groups: torch.optim.Adagrad(groups, lr=1.0), 4.0),
    ],
)
@pytest.mark.parametrize("flat", [True, False])
def test_bytes_a_number_are_those_of_torchs_optimizers(make: Any, expected: float, flat: bool) -> None:
    with torch.device("meta"):
        weights = [nn.Parameter(torch.empty(40_000, 8_000)), nn.Parameter(torch.empty(8_000))]
    groups = [{"params": weights}, {"params": weights[1:], "weight_decay": 0.0}]
    assert state_bytes(make, groups, names_of(groups), flat=flat) == (expected, expected)


def test_groups_may_keep_different_state() -> None:
    groups = [{"params": [nn.Parameter(torch.ones(3))], "momentum": 0.9}, {"params": [nn.Parameter(torch.ones(3))]}]
    assert state_bytes(lambda g: torch.optim.SGD(g, lr=1.0), groups, names_of(groups), flat=True) == (4.0, 0.0)


class FactoringTransform:
    """A gradient transform that keeps a number for each row."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        self.optimizer = torch.optim.AdamW(groups, lr=1.0)

    def transform(self, name: str, gradient: torch.Tensor, state: dict[str, torch.Tensor]) -> torch.Tensor:
        state["rows"] = torch.zeros(gradient.shape[0])
        return gradient


def test_what_a_transform_keeps_counts_for_its_groups_on_every_layout() -> None:
    groups: list[dict[str, Any]] = [
        {"params": [nn.Parameter(torch.ones(32, 16))], "transformed": on} for on in (True, False)
    ]
    assert state_bytes(FactoringTransform, groups, names_of(groups), flat=True) == (8 + 4 / 16, 8.0)


class LowRankTransform(FactoringTransform):
    """Keeps a projection to rank 128, as GaLore does; ``looks`` at a value first, which a tensor without memory does not have."""

    looks = False

    def transform(self, name: str, gradient: torch.Tensor, state: dict[str, torch.Tensor]) -> torch.Tensor:
        if self.looks and gradient.sum().item() < 0:
            return gradient
        state["projection"] = torch.zeros(min(128, *gradient.shape), max(gradient.shape))
        return gradient


class LookingTransform(LowRankTransform):
    looks = True


def test_what_a_transform_of_low_rank_keeps_is_counted_on_whole_matrices() -> None:
    with torch.device("meta"):
        weights = [nn.Parameter(torch.empty(shape)) for shape in ((4096, 11_008), (4096, 11_008), (4096, 4096))]
    groups: list[dict[str, Any]] = [{"params": weights, "transformed": True}]
    kept = 4 * 128 * (2 * 11_008 + 4096) / (4096 * (2 * 11_008 + 4096))
    assert state_bytes(LowRankTransform, groups, names_of(groups), flat=True) == (pytest.approx(8 + kept),)


def test_a_transform_that_looks_at_values_is_counted_on_stand_ins() -> None:
    groups: list[dict[str, Any]] = [{"params": [nn.Parameter(torch.ones(4096, 256))], "transformed": True}]
    assert state_bytes(LookingTransform, groups, names_of(groups), flat=True) == (8 + 4.0,)


class NamedTransform(FactoringTransform):
    """Keeps twice as much of what is outside of blocks."""

    def transform(self, name: str, gradient: torch.Tensor, state: dict[str, torch.Tensor]) -> torch.Tensor:
        state["rows"] = torch.zeros(gradient.shape[0] * (1 if ".layers." in name else 2))
        return gradient


def test_a_transform_sees_the_names_that_a_run_has() -> None:
    weights = [nn.Parameter(torch.ones(32, 16)) for _ in range(3)]
    names = dict(zip(map(id, weights), ("model.layers.0.up.weight", "model.layers.11.up.weight", "embed"), strict=True))
    kept = state_bytes(NamedTransform, [{"params": weights, "transformed": True}], names, flat=True)
    assert kept == (pytest.approx(8 + 4 * (1 + 1 + 2) / (3 * 16)),)


class LowRankOptimizer(torch.optim.Optimizer):
    """Keeps moments of rank 128 for matrices; ``looks`` at a value first."""

    def __init__(self, groups: list[dict[str, Any]], *, looks: bool = False) -> None:
        super().__init__(groups, {"lr": 1.0})
        self.looks = looks

    def step(self, closure: Any = None) -> None:
        for parameter in (each for group in self.param_groups for each in group["params"]):
            if not self.looks or parameter.grad.sum().item() > 0:
                self.state[parameter]["moments"] = torch.zeros(min(128, *parameter.shape), max(parameter.shape))


def test_an_optimizer_of_low_rank_is_counted_on_whole_matrices() -> None:
    with torch.device("meta"):
        weights = [nn.Parameter(torch.empty(shape)) for shape in ((4096, 11_008), (4096, 11_008), (4096, 4096))]
    groups, names = [{"params": weights}], names_of([{"params": weights}])
    kept = 4 * 128 * (2 * 11_008 + 4096) / (4096 * (2 * 11_008 + 4096))
    assert state_bytes(LowRankOptimizer, groups, names, flat=False, whole=True) == (pytest.approx(kept),)
    looking = partial(LowRankOptimizer, looks=True)
    assert state_bytes(looking, groups, names, flat=False, whole=True) == (4.0,), "an upper bound"


def test_an_optimizer_of_whole_parameters_sees_their_shape() -> None:
    groups = [{"params": [nn.Parameter(torch.ones(32, 16))]}]
    assert state_bytes(FactoredOptimizer, groups, names_of(groups), flat=False) == (4 * (32 + 16) / (32 * 16),)
