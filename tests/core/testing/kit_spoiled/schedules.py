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
