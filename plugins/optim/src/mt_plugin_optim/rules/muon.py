"""Muon (https://kellerjordan.github.io/posts/muon) for the matrices of blocks, AdamW for all others, both torch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class MuonWithAdamW(torch.optim.Optimizer):
    """Two optimizers with one list of groups and one state."""

    def __init__(self, groups: list[dict[str, Any]], muon: dict[str, Any], adamw: dict[str, Any]) -> None:
        super().__init__(groups, {"lr": muon["lr"]})
        hidden, others = ([group for group in groups if group["hidden"] is wanted] for wanted in (True, False))
        made: list[torch.optim.Optimizer] = []
        if hidden:
            made.append(torch.optim.Muon(hidden, **muon))
        if others:
            made.append(torch.optim.AdamW(others, **adamw, foreach=False))
        for each in made:
            each.state = self.state
        self._made = made

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for each in self._made:
            each.step()
        return loss
