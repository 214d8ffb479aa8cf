"""Folder of caches: of what can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """``MT_CACHE``, else ``~/.cache/mt/tokens``."""
    return Path(os.environ.get("MT_CACHE") or "~/.cache/mt/tokens").expanduser()
