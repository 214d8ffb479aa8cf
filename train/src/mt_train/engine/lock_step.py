"""Forwards where every one is collective (ZeRO 3), for ranks that need different numbers of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mt_core.nn import Batch, KVCache, TrainModel
from mt_train.engine.engine import Engine
from mt_train.engine.processes import all_reduce


class LockStep:
    """Runs the model in rounds: before each, all ranks hear whether one needs it, and those that do not run along with one token.

    Used as the ``forward`` of a decoder. Inside ``with`` a rank calls it as often as it needs; the end of the block comes when no
    rank needs it any more.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine, self._device = engine, engine.process.device

    def __enter__(self) -> LockStep:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None:
            return  # this rank ends, and the launcher ends the others
        token = torch.zeros((1, 1), dtype=torch.long, device=self._device)
        while self._is_needed(False):
            self._run(Batch(token, token, token, token), KVCache())

    def __call__(self, model: TrainModel, batch: Batch, cache: KVCache) -> Tensor:
        """Run the model on T more tokens of each row; returns the (B, V) logits after the last."""
        self._is_needed(True)
        return self._run(batch, cache)

    def _is_needed(self, here: bool) -> bool:
        return bool(all_reduce(torch.tensor(int(here), device=self._device)).item())

    @torch.no_grad()
    def _run(self, batch: Batch, cache: KVCache) -> Tensor:
        found: list[Tensor] = []

        def keep_last(hidden_BTD: Tensor, head: nn.Module, batch: Batch) -> None:
            found.append(head(hidden_BTD[:, -1]))

        self._engine.read([batch], keep_last, cache)
        return found[0]
