from __future__ import annotations

import math
from itertools import count
from typing import Any


def counts(config: Any, *, total_steps: int) -> Any:
    calls = count()
    return lambda k: 1.0 / (1 + next(calls))


def negative(config: Any, *, total_steps: int) -> Any:
    return lambda k: 1.0 - k / total_steps if k <= total_steps else math.nan


def still(config: Any, *, total_steps: int) -> Any:
    return lambda k: 0.0


def straight(config: Any, *, total_steps: int) -> Any:
    return lambda k: 1.0


def remembers(config: Any, *, total_steps: int) -> Any:
    """Never above what it was, whoever asked for what."""
    seen: list[int] = []

    def factor(k: int) -> float:
        seen.append(k)
        return 1 / (1 + max(seen))

    return factor


def hasty(config: Any, *, total_steps: int) -> Any:
    """Nobody runs a single update."""
    return lambda k: max(0.0, 1 - k / (total_steps - 1))


def rates(config: Any, *, total_steps: int) -> Any:
    return lambda k: 3e-4
