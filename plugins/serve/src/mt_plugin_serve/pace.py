"""How much of a prompt is read between two tokens of the others."""

from __future__ import annotations

LEAST = 16
"""Tokens of a piece: below it the time of a step is that of the calls, and not of the tokens."""
FIRST = 64
"""Tokens of a piece as long as nothing is known."""
_KEPT = 0.8
"""Weight of what was measured before."""


class Pace:
    """Chooses pieces of prompts so that a step with one takes about ``share`` steps longer than one without.

    Where more rows wait for their first token than run, as many times longer: one row is not worth the wait of seven. ``most`` bounds
    pieces, and is their size where no row runs.
    """

    def __init__(self, most: int, *, share: float = 2.0) -> None:
        self._most, self._share = most, share
        self._step: float | None = None
        self._seconds = self._tokens = 0.0

    def piece(self, *, running: int, entering: int = 1) -> int:
        """Return tokens of the next piece, where so many rows run and wait."""
        if not running:
            return self._most
        if self._step is None or not self._tokens:
            return min(self._most, FIRST)
        budget = self._share * self._step * max(1.0, entering / running)
        return max(min(LEAST, self._most), min(self._most, int(budget * self._tokens / self._seconds)))

    def learn(self, seconds: float, tokens: int, *, running: int) -> None:
        """Learn what a step took, with so many tokens of prompts, in which so many rows ran."""
        if not tokens:
            self._step = seconds if self._step is None else _KEPT * self._step + (1 - _KEPT) * seconds
            return
        own = max(seconds - (self._step or 0.0), 1e-6) if running else seconds
        self._seconds = _KEPT * self._seconds + own
        self._tokens = _KEPT * self._tokens + tokens
