"""Noise on the gradients: as much as the paper says, less with each step."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from mt_core import CallbackContext
from mt_plugin_callbacks.noise import GradientNoise, GradientNoiseConfig


class Weights:
    """One parameter under SGD of rate 1, whose gradient is nothing but the noise."""

    def __init__(self, rank: int = 0, sliced: bool = False) -> None:
        self.parameter = torch.nn.Parameter(torch.zeros(20_000))
        self.optimizer = torch.optim.SGD([self.parameter], lr=1.0)
        self.rank, self.sliced = rank, sliced

    def noise(self, step: int, **options: Any) -> torch.Tensor:
        callback = GradientNoise(GradientNoiseConfig(**options))
        context = CallbackContext(
            step=step,
            total_steps=9,
            output=None,
            weights=self,
            config={"train": {"seed": 3}},  # type: ignore[arg-type]
        )
        callback.on_model_built(context)
        callback.on_before_optimizer_step(context)
        self.parameter.grad = torch.zeros_like(self.parameter)
        self.optimizer.step()
        return self.parameter.grad


@pytest.mark.parametrize(("step", "variance"), [(0, 0.3), (99, 0.3 / 100**0.55)])
def test_the_variance_is_that_of_the_paper(step: int, variance: float) -> None:
    found = Weights().noise(step, eta=0.3)
    assert math.isclose(float(found.std()), math.sqrt(variance), rel_tol=0.03)
    assert abs(float(found.mean())) < 0.02


def test_numbers_follow_from_seed_step_and_the_rank_that_owns_a_slice() -> None:
    first = Weights().noise(1)
    assert torch.equal(first, Weights().noise(1))
    assert torch.equal(first, Weights(rank=1).noise(1)), "whole gradients are the same on all ranks"
    assert not torch.equal(first, Weights().noise(2))
    assert not torch.equal(first, Weights(rank=1, sliced=True).noise(1))


def test_noise_that_fades_beyond_every_number_is_none() -> None:
    assert not Weights().noise(1, gamma=5000.0).any()
    assert Weights().noise(0, gamma=5000.0).any()
