"""Limits of a server: its options, checked in one place. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mt_core import UsageError

_ALLOWED: dict[str, tuple[float, float, str]] = {
    "max_rows": (1, 4096, "texts"),
    "max_queue": (0, 10**6, "texts"),
    "cache_tokens": (1, 10**12, "tokens"),
    "prefill_tokens": (1, 10**6, "tokens"),
    "max_body_mib": (0.001, 1024, "MiB"),
    "grace": (0, 86400, "s"),
}
"""Field of ``Limits`` → the least, the most, and the unit."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one server; each is an option of ``mt-serve`` by the same name.

    Raises ``UsageError`` that lists every value out of bounds.
    """

    max_rows: int = 8
    """Texts that are computed at a time, for each adapter."""
    max_queue: int = 256
    """Texts that may wait beside them."""
    cache_tokens: int | None = None
    """Places (tokens) of the cache for all texts together; ``None`` for as many as they need."""
    prefill_tokens: int = 512
    """Tokens of prompts in one step."""
    max_body_mib: float = 4.0
    """Size of a request's body (MiB)."""
    grace: int = 30
    """Seconds that what runs may go on, once the server is to end."""

    def __post_init__(self) -> None:
        if faults := find_faults(vars(self)):
            raise UsageError("\n".join(faults))

    def cache_share(self, adapters: int) -> int | None:
        """Return the places of the cache that each of so many adapters has; ``None`` for as many as it needs."""
        return None if self.cache_tokens is None else max(1, self.cache_tokens // adapters)

    @property
    def max_body(self) -> int:
        """Return the size of a body in bytes."""
        return int(self.max_body_mib * 2**20)


def find_faults(values: Mapping[str, float | None], spell: Callable[[str], str] = str) -> list[str]:
    """Return the faults of values of ``Limits``; ``spell`` turns the name of a field into what the user calls it."""
    found = []
    for name, (least, most, unit) in _ALLOWED.items():
        value = values[name]
        if value is not None and not least <= value <= most:
            found.append(f"{spell(name)} has to be from {least:,} to {most:,} {unit}; got {value:,}")
    return found
