"""Weights that are published instead of those that are trained come and go to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mt_train.engine.averaging import use_averaged_weights


class HalvingOptimizer(torch.optim.SGD):
    """Publishes half of each weight."""

    def average_of(self, parameter: Tensor) -> Tensor:
        return parameter.detach() / 2


class Wrapper:
    """As DeepSpeed's: live weights are copies of the masters."""

    def __init__(self, master: Tensor) -> None:
        self.master, self.live = master, master.detach().clone()

    def update_lp_params(self) -> None:
        self.live.copy_(self.master)


def step(kind: Any) -> tuple[Any, nn.Parameter]:
    weight = nn.Parameter(torch.rand(7))
    optimizer = kind([weight], lr=0.1, momentum=0.9)
    weight.grad = torch.rand(7)
    optimizer.step()
    return optimizer, weight


def test_the_average_is_there_inside_only_and_on_the_live_weights() -> None:
    optimizer, weight = step(HalvingOptimizer)
    before, wrapper = weight.detach().clone(), Wrapper(weight)
    with use_averaged_weights(wrapper, optimizer):
        assert torch.equal(weight, before / 2)
        assert torch.equal(wrapper.live, before / 2)
    assert torch.equal(weight, before)
    assert torch.equal(wrapper.live, before)


def test_the_trained_weights_come_back_after_a_failure() -> None:
    optimizer, weight = step(HalvingOptimizer)
    before = weight.detach().clone()
    with pytest.raises(RuntimeError), use_averaged_weights(None, optimizer):
        raise RuntimeError("out of memory")
    assert torch.equal(weight, before)


def test_other_optimizers_and_a_first_step_are_left_alone() -> None:
    optimizer, weight = step(torch.optim.SGD)
    before = weight.detach().clone()
    with use_averaged_weights(None, optimizer):
        assert torch.equal(weight, before)
    fresh = HalvingOptimizer([nn.Parameter(before.clone())], lr=0.1)
    with use_averaged_weights(None, fresh):
        assert torch.equal(fresh.param_groups[0]["params"][0], before)


def test_weights_that_no_step_has_changed_are_published_as_they_are() -> None:
    """A checkpoint after a first step that was skipped asks for state, and leaves some that is empty (a ``defaultdict``)."""
    weight = nn.Parameter(torch.rand(7))
    optimizer = HalvingOptimizer([weight], lr=0.1)
    assert not optimizer.state[weight]
    before = weight.detach().clone()
    with use_averaged_weights(object(), optimizer):
        assert torch.equal(weight, before)
