"""Forwards where every one is collective (ZeRO 3), for ranks that need different numbers of them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from mt_core.nn import Batch, KVCache, TrainModel
from mt_train.engine.engine import Engine
from mt_train.engine.processes import all_reduce
from mt_train.generation.forward import Forward, ReadMedia, last_logits


def forwards_of(engine: Engine, read_media: ReadMedia | None = None) -> AbstractContextManager[Forward]:
    """Return the forward with which a rank writes texts: alone where it can run the model so, else in lock step with the others."""
    return nullcontext(last_logits) if engine.plan.forward_alone else LockStep(engine, read_media)


class LockStep:
    """Runs the model in rounds: before each, all ranks hear whether one needs it, and those that do not run along with one token.

    Used as the ``forward`` of a decoder. Inside ``with`` a rank calls it as often as it needs; the end of the block comes when no
    rank needs it any more.
    """

    def __init__(self, engine: Engine, read_media: ReadMedia | None = None) -> None:
        """``read_media`` gives a batch the inputs of encoders: all ranks call these wherever one of them has media."""
        self._engine, self._device, self._read_media = engine, engine.process.device, read_media

    def __enter__(self) -> LockStep:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None:
            return  # this rank ends, and the launcher ends the others
        token = torch.zeros((1, 1), dtype=torch.long)
        needed, has_media = self._ask(False, False)
        while needed:
            self._run(Batch(token, token, token, token), KVCache(), has_media=has_media)
            needed, has_media = self._ask(False, False)

    def __call__(self, model: TrainModel, batch: Batch, cache: KVCache) -> Tensor:
        """Run the model on T more tokens of each row; returns the (B, V) logits after the last."""
        _, has_media = self._ask(True, bool(batch.media))
        return self._run(batch, cache, has_media=has_media)

    def _ask(self, needed: bool, has_media: bool) -> tuple[bool, bool]:
        """Return whether any rank needs a forward, and whether one has media in it."""
        counts = all_reduce(torch.tensor([int(needed), int(has_media)], device=self._device)).tolist()
        return bool(counts[0]), bool(counts[1])

    @torch.no_grad()
    def _run(self, batch: Batch, cache: KVCache, *, has_media: bool) -> Tensor:
        found: list[Tensor] = []
        if has_media and not batch.media and self._read_media is not None:
            batch = self._read_media(batch)

        def keep_last(hidden_BTD: Tensor, head: nn.Module, batch: Batch) -> None:
            found.append(head(hidden_BTD[:, -1]))

        self._engine.read([batch], keep_last, cache)
        return found[0]
