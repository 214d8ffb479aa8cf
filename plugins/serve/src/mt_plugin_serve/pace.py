"""How much of a prompt is read between two tokens of the others."""

from __future__ import annotations

LEAST = 16
"""Tokens of a piece: below it the time of a step is that of the calls, and not of the tokens."""
FIRST = 64
"""Tokens of a piece as long as nothing is known."""
_KEPT = 0.8
"""Weight of what was measured before, of steps."""
_KEPT_PIECES = 0.9
"""Weight of what was measured before, of pieces: a line needs several of them."""
_LEAST_SLOPE = 1 / 3
"""Share of the mean time of a token that one more token takes at least, whatever a line through a few pieces says."""


class Pace:
    """Chooses pieces of prompts so that a step with one takes about ``share`` steps longer than one without.

    Where more rows wait for their first token than run, as many times longer: one row is not worth the wait of seven. ``most`` bounds the
    pieces, and is their size where no row runs. A piece takes a time of its own, in which all weights are read once, and one for each
    token: both are fitted to what pieces took.
    """

    def __init__(self, most: int, *, share: float = 2.0) -> None:
        self._most, self._share = most, share
        self._step: float | None = None
        self._count = self._tokens = self._squares = self._seconds = self._products = 0.0

    def piece(self, *, running: int, entering: int = 1) -> int:
        """Return tokens of the next piece, where so many rows run and wait."""
        if not running:
            return self._most
        if self._step is None or not self._tokens:
            return min(self._most, FIRST)
        budget = self._share * self._step * max(1.0, entering / running)
        own, token = self._fit()
        return max(min(LEAST, self._most), min(self._most, int((budget - own) / token)))

    def learn(self, seconds: float, tokens: int, *, running: int) -> None:
        """Learn what a step took, with so many tokens of prompts, in which so many rows ran."""
        if not tokens:
            self._step = seconds if self._step is None else _KEPT * self._step + (1 - _KEPT) * seconds
            return
        took = max(seconds - (self._step or 0.0), 1e-6) if running else seconds
        self._count = _KEPT_PIECES * self._count + 1
        self._tokens = _KEPT_PIECES * self._tokens + tokens
        self._squares = _KEPT_PIECES * self._squares + tokens * tokens
        self._seconds = _KEPT_PIECES * self._seconds + took
        self._products = _KEPT_PIECES * self._products + took * tokens

    def _fit(self) -> tuple[float, float]:
        """Return the seconds that a piece takes beside its tokens, and those of a token: a line by least squares."""
        mean = self._seconds / self._tokens
        spread = self._squares - self._tokens**2 / self._count
        if spread < 1e-3 * self._squares:  # all of one size
            return 0.0, mean
        slope = (self._products - self._tokens * self._seconds / self._count) / spread
        slope = min(max(slope, _LEAST_SLOPE * mean), mean)
        return (self._seconds - slope * self._tokens) / self._count, slope
