"""How much of a prompt is read between two tokens of the others."""

from __future__ import annotations

LEAST = 16
"""Tokens of a piece: below it the time of a step is that of the calls, and not of the tokens."""


class Pace:
    """Chooses pieces of prompts so that a step with one takes about ``share`` steps longer than one without.

    ``most`` bounds them; where no row waits for its next token, that is their size.
    """

    def __init__(self, most: int, *, share: float = 2.0) -> None:
        self._most, self._share = most, share
        self._step: float | None = None
        self._token: float | None = None

    def piece(self, *, delays: bool) -> int:
        """Return tokens of the next piece; it ``delays`` where rows run."""
        if not delays or self._step is None or self._token is None:
            return self._most if not delays else min(self._most, 4 * LEAST)
        return max(min(LEAST, self._most), min(self._most, int(self._share * self._step / self._token)))

    def plain_step(self, seconds: float) -> None:
        """Learn what a step without a prompt took."""
        self._step = seconds if self._step is None else 0.8 * self._step + 0.2 * seconds

    def prompt_step(self, seconds: float, tokens: int, *, delays: bool) -> None:
        """Learn what a step with a piece of so many tokens took."""
        own = seconds - (self._step or 0.0) if delays else seconds
        token = max(own, 1e-7) / tokens
        self._token = token if self._token is None else 0.8 * self._token + 0.2 * token
