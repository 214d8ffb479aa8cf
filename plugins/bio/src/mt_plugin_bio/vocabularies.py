"""Letters to ids: one a letter, or one for k letters. What a published folder's tokenizer does stands in ``bpe``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DNA = b"ACGTN"
BASES = b"ACGT"
"""Letters of DNA without the unknown one: those of k-mers, here in the order of their codes."""


@dataclass(frozen=True)
class CharacterVocabulary:
    """One id a letter; ``before`` and ``behind`` are ids that frame a sequence."""

    ids: Mapping[str, int]
    before: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()

    @property
    def letters(self) -> bytes:
        """Letters that it knows."""
        return "".join(self.ids).encode("ascii")

    def encode(self, letters: bytes) -> NDArray[np.int64]:
        """Return the ids of known letters."""
        import numpy as np

        return frame(self._table[np.frombuffer(letters, np.uint8)], self.before, self.behind)

    @cached_property
    def _table(self) -> NDArray[np.int64]:
        return letter_table(self.ids, self.letters)


@dataclass(frozen=True)
class KmerVocabulary:
    """One id for each k bases from the left, and one a letter where no k are left before an N or the end.

    ``ids`` has every k-mer of A, C, G and T, and the single letters.
    """

    ids: Mapping[str, int]
    k: int
    before: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()
    letters: bytes = DNA

    def encode(self, letters: bytes) -> NDArray[np.int64]:
        """Return the ids of known letters."""
        import numpy as np

        bytes_L = np.frombuffer(letters, np.uint8)
        length, places = len(bytes_L), np.arange(len(bytes_L))
        unknown = bytes_L == ord("N")
        run_start = np.maximum.accumulate(np.where(unknown, places, -1)) + 1
        run_end = np.minimum.accumulate(np.where(unknown, places, length)[::-1])[::-1]
        within, whole = places - run_start, (run_end - run_start) // self.k * self.k
        begins = (within < whole) & (within % self.k == 0) & ~unknown
        ids = self._singles[bytes_L]
        starts = np.flatnonzero(begins)
        codes = sum(self._codes[bytes_L[starts + place]] * 4 ** (self.k - 1 - place) for place in range(self.k))
        ids[starts] = self._kmers[codes]
        return frame(ids[begins | unknown | (within >= whole)], self.before, self.behind)

    @cached_property
    def _singles(self) -> NDArray[np.int64]:
        return letter_table(self.ids, self.letters)

    @cached_property
    def _codes(self) -> NDArray[np.int64]:
        return letter_table(numbered(*BASES.decode()), BASES)

    @cached_property
    def _kmers(self) -> NDArray[np.int64]:
        import numpy as np

        return np.array([self.ids[kmer] for kmer in kmers(self.k, BASES.decode())], np.int64)


def letter_table(ids: Mapping[str, int], letters: bytes) -> NDArray[np.int64]:
    """Return the id of each byte (256), -1 where it is none of the letters."""
    import numpy as np

    table = np.full(256, -1, np.int64)
    table[np.frombuffer(letters, np.uint8)] = [ids[chr(letter)] for letter in letters]
    return table


def kmers(k: int, bases: str) -> list[str]:
    """Return every word of k bases, in their order."""
    return ["".join(word) for word in product(bases, repeat=k)]


def numbered(*words: str) -> dict[str, int]:
    """Return each word's place."""
    return {word: place for place, word in enumerate(words)}


def frame(ids: NDArray[np.int64], before: tuple[int, ...], behind: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the ids with others around them."""
    import numpy as np

    return np.concatenate([before, ids, behind]).astype(np.int64)
