"""A step that is computed again before its update."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mt_train.engine.repetition import make_repetition


class Sums(nn.Module):
    """Outputs as those of a ``LossHead``: a loss sum and a count."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.unused = nn.Linear(8, 8), nn.Linear(2, 2)
        self.linear.bias.requires_grad_(False)

    def forward(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        return nn.functional.dropout(self.linear(batch), 0.5).square().sum(), torch.tensor(8.0)


def test_hooks_get_the_same_gradients_again_and_nothing_else_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two micro-batches, with dropout, and the loss scale of fp16."""
    torch.manual_seed(0)
    module, window, seen = Sums(), [torch.randn(4, 8), torch.randn(4, 8)], list[Tensor]()
    module.linear.weight.register_hook(lambda gradient: seen.append(gradient.clone()))
    scaler = SimpleNamespace(loss_scaler=SimpleNamespace(cur_scale=64.0))
    engine: Any = SimpleNamespace(
        process=SimpleNamespace(device=torch.device("cpu")),
        plan=SimpleNamespace(scales_loss=True),
        zero_optimizer=scaler,
    )
    transfer: Any = SimpleNamespace(copy_ahead=iter)
    repeat = make_repetition(engine, module, transfer, window, [0.25])
    for batch in window:
        (module(batch)[0] * 0.25 * 64.0).backward()
    added, numbers, first = module.linear.weight.grad, torch.get_rng_state(), list(seen)
    assert added is not None
    kept = added.clone()
    seen.clear()
    returned, grad = list[Tensor](), torch.autograd.grad

    def keep(*given: Any, **options: Any) -> tuple[Tensor | None, ...]:
        found: tuple[Tensor | None, ...] = grad(*given, **options)
        returned.extend(each for each in found if each is not None)
        return found

    monkeypatch.setattr(torch.autograd, "grad", keep)
    repeat()
    assert [each.untyped_storage().nbytes() for each in returned] == [4, 4], "no gradient is kept behind the hooks"
    assert [torch.equal(a, b) for a, b in zip(first, seen, strict=True)] == [True, True]
    assert torch.equal(module.linear.weight.grad, kept)
    assert torch.equal(torch.get_rng_state(), numbers)
