"""Letters to ids: one a letter, or one for k letters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class CharacterVocabulary:
    """One id a letter, that of ``ids`` at its place in ``letters``; ``before`` and ``behind`` frame a sequence."""

    letters: bytes
    ids: Sequence[int]
    before: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()

    def encode(self, letters: bytes) -> NDArray[np.int64]:
        """Return the ids of known letters."""
        table = np.zeros(256, np.int64)
        table[np.frombuffer(self.letters, np.uint8)] = self.ids
        return np.concatenate([self.before, table[np.frombuffer(letters, np.uint8)], self.behind]).astype(np.int64)
