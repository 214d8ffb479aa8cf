"""Where tests of the commands find what they share."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for odd_inputs, which is also a program of its own
