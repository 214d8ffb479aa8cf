"""Full training."""

from __future__ import annotations

from typing import Any

from torch import nn

from mt_core import Adapter


class TiedModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=True)
        self.head.weight = self.embed.weight


def test_every_parameter_is_trained_and_a_shared_one_counts_once(build: Any) -> None:
    adapter = build("adapter", "full")
    model: Any = TiedModel()
    adapter.inject(model)
    assert isinstance(adapter, Adapter)
    assert adapter.trainable_parameters(model) == adapter.saved_state(model) == ["embed.weight", "head.bias"]
    assert adapter.parameter_groups(model, 1e-3) == []
