"""The bench of tests/train/engine, for models of any family. Run by test_families.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "train/engine"))

from layout_worker import Bench, main


class Families(Bench):
    """Every layout of a family on the same rows."""

    def run(self, case: dict[str, Any]) -> dict[str, Any]:
        return without_weights(super().run(case))

    def resume(self, case: dict[str, Any]) -> dict[str, Any]:
        return without_weights(super().resume(case))


def without_weights(result: dict[str, Any]) -> dict[str, Any]:
    """Without the weights, number by number: their hash says whether they are equal."""
    return {key: value for key, value in result.items() if key != "values"}


if __name__ == "__main__":
    main(Families)
