"""Whether the server writes with the weights that it was told to load: its log-probabilities beside those of the trainer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .errors import OtherWeightsError

CHANGED = 0.01
"""Nats by which a token of the probe has to move in the trainer, before a server that says exactly the same as before is not believed:
below that, bf16 may round the change away."""


@dataclass(frozen=True)
class _Values:
    trainer: tuple[float, ...]
    server: tuple[float, ...]


class WeightsProof:
    """Compares both on some tokens, the same ones in each iteration.

    A step of training may change less than two implementations differ. So a server that ignores new weights is not found by the
    distance alone: it is the one that gives the same numbers to the last bit while those of the trainer move.
    """

    def __init__(self, tolerance: float) -> None:
        self._tolerance = tolerance
        self._last: _Values | None = None

    def compare(self, trainer: Sequence[float], server: Sequence[float]) -> None:
        """Raise ``OtherWeightsError`` where the server has other weights, or those of before."""
        refuse_distance(trainer, server, self._tolerance, "a probe")
        seen = _Values(tuple(trainer), tuple(server))
        if self._last is None or self._last.server != seen.server:
            self._last = seen
            return
        moved = max(abs(now - then) for now, then in zip(seen.trainer, self._last.trainer, strict=True))
        if moved > CHANGED:
            raise OtherWeightsError(
                f"the server's log-probabilities of {len(server)} tokens are those of before to the last bit, and the trainer's have moved"
                f" by up to {moved:.3g} nats: it has not loaded the new weights. Does it see the folder (--sampler.server-folder)?"
            )


def refuse_distance(trainer: Sequence[float], server: Sequence[float], tolerance: float, what: str) -> None:
    """Raise ``OtherWeightsError`` where they are further apart than the tolerance."""
    if (apart := distance(trainer, server)) > tolerance:
        raise OtherWeightsError(
            f"the server's log-probabilities of {len(server)} tokens of {what} are {apart:.3g} nats a token from those of the trainer"
            f" (allowed: {tolerance:g}): it has other weights, another model or old prefixes in its cache. Does it serve this run"
            " alone, and the model that is trained? One in few bits needs more --sampler.tolerance"
        )


def distance(trainer: Sequence[float], server: Sequence[float]) -> float:
    """Return the mean distance of a token (nats)."""
    return sum(abs(one - other) for one, other in zip(trainer, server, strict=True)) / max(len(server), 1)
