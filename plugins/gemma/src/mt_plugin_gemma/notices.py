"""Notices of a reader of weights to whoever starts the run."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path


def say_vision(path: Path, count: int, patterns: Iterable[str]) -> None:
    """Tensors that see images are left out; said once, on the first rank."""
    level = logging.INFO if os.environ.get("RANK", "0") == "0" else logging.DEBUG
    said = f"notice: {count} tensors of {path} see images and are left out ({', '.join(patterns)})"
    logging.getLogger("mt_core.gemma").log(level, said)
