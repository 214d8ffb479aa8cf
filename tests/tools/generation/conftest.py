"""The models that are tested: those of the tests of decoding."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "train" / "generation"))

from twins import loaded, pair, sharp_pair

__all__ = ["loaded", "pair", "sharp_pair"]
