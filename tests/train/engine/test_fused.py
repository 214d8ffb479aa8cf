"""The engine whose updates happen while gradients arrive; runs with it are in tests/optim."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from mt_core.nn import LossFactor, with_loss
from mt_train.engine.fused import FusedEngine
from mt_train.engine.step_result import StepSize


@pytest.mark.parametrize("tokens", [4.0, 16.0])
def test_a_loss_of_a_layer_has_the_factor_of_the_loss_itself(tokens: float) -> None:
    """Both are sums over tokens, and divided by those of the step."""
    weight, factor = torch.ones(3, requires_grad=True), LossFactor()

    def module(batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inner = with_loss(weight * batch, (weight * 5).sum(), factor)
        return inner.sum(), torch.tensor(tokens)

    engine = object.__new__(FusedEngine)
    module.model = SimpleNamespace(loss_factor=factor)  # type: ignore[attr-defined]
    engine.module = module  # type: ignore[assignment]
    engine.plan = SimpleNamespace(scales_loss=False, sharing_ranks=2)  # type: ignore[assignment]
    engine._pass(torch.full((3,), 2.0), StepSize(tokens, int(tokens)), lambda parameter: None)
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, torch.full((3,), (2.0 + 5.0) * 2 / tokens))
