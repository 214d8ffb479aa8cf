"""Trains every adapter on many layouts in one launch. Run by test_conformance.py; see ../train/engine/layout_worker.py."""

from __future__ import annotations

import hashlib
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "train" / "engine"))

from layout_worker import Bench, main
from torch import Tensor

ABOUT = ("losses", "norms", "state", "values", "copies")


class ConformanceBench(Bench):
    """A case that fails says so, and the others go on."""

    def try_case(self, case: dict[str, Any]) -> dict[str, Any]:
        """Return the result of ``run`` or ``resume`` (the case's ``how``), or the error."""
        try:
            found = getattr(self, case["how"])(case)
        except Exception:  # noqa: BLE001 - whatever it is, it is this case's result
            return {"error": traceback.format_exc()}
        return {key: found[key] for key in ABOUT}

    def as_result(self, value: Tensor) -> str:
        return hashlib.sha256(value.numpy().tobytes()).hexdigest()[:16]


if __name__ == "__main__":
    main(ConformanceBench)
