"""The last things that were opened, kept for the next row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class LoadCache(Generic[T]):
    """``load(*key)``, remembered for the last ``size`` keys. Forgotten when its owner is pickled: handles do not travel."""

    def __init__(self, load: Callable[..., T], size: int = 2) -> None:
        self._load, self._size = load, size
        self._values: dict[Any, T] = {}

    def get(self, *key: Any) -> T:
        """The value of a key, loaded where it is not here."""
        if key not in self._values:
            while len(self._values) >= self._size:
                del self._values[next(iter(self._values))]
            self._values[key] = self._load(*key)
        return self._values[key]

    def __getstate__(self) -> dict[str, Any]:
        return {"_load": self._load, "_size": self._size, "_values": {}}
