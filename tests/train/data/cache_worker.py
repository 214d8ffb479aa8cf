"""Makes a token cache of made-up rows, slowly. Run by test_cache.py, which kills it."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from mt_core import Sample
from mt_train.data import chunks
from mt_train.data.cache import TokenCache
from mt_train.data.encoding import Rules

ROWS = 320
RULES = Rules(max_len=12, truncation="split")
MADE_OF = {"rows": "made up"}
CHUNK_ROWS = 16
"""Rows of a chunk, for whoever uses this."""


class Rows:
    """Rows of numbers; each takes a while."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return ROWS

    def row(self, index: int) -> dict[str, Any]:
        time.sleep(self.seconds)
        return {"id": f"rows é:{index}", "n": 2 + index * 7 % 23}


class Count:
    """An objective whose samples count up; some have weights, some rows are rejected further on."""

    def encode(self, row: Any) -> Sample:
        n = row["n"]
        weights = [index / 3 for index in range(n)] if n % 5 == 0 else None
        return Sample(list(range(n)), [n != 3 and index > 0 for index in range(n)], row["id"], weights)


def make(root: Path, *, workers: int, seconds: float = 0.0, rules: Rules = RULES) -> Any:
    """The samples of the made-up rows."""
    cache = TokenCache(root, workers, lambda text: None, lambda: nullcontext(lambda done, total: None))
    return cache.samples("key", lambda: (Rows(seconds), range(ROWS)), Count(), rules, made_of=MADE_OF)


def encode_share(root: Path, share: chunks.Share, *, workers: int = 1, seconds: float = 0.0) -> None:
    """Encode a share of the made-up rows."""
    cache = TokenCache(root, workers, lambda text: None, lambda: nullcontext(lambda done, total: None))
    source = (Rows(seconds), range(ROWS))
    cache.encode_share("key", lambda: source, Count(), RULES, made_of=MADE_OF, share=share)


if __name__ == "__main__":
    chunks.CHUNK_ROWS = CHUNK_ROWS
    root, workers, seconds, *share = sys.argv[1:]
    if share:
        encode_share(Path(root), chunks.Share(*map(int, share)), workers=int(workers), seconds=float(seconds))
    else:
        make(Path(root), workers=int(workers), seconds=float(seconds))
