"""Losses equal those of TRL in value and gradient, through TRL's own functions and in float64.

``python tests/alignment/test_trl.py`` prints what was measured.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from trl_losses import differences, dpo, tokens, with_gradient

from mt_plugin_alignment.offers.losses import LOSSES

COMPONENTS = {each.name: each for each in LOSSES}
ANSWERS = tokens([(4, 7), (5, 6), (6, 5), (1, 3), (9, 9)])
EXACT = 1e-10
"""Relative difference, value and gradient."""

CASES: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("sigmoid", {"beta": 0.3}, "sigmoid", {}),
]
"""Our loss and its options, that of TRL and its further options."""


def measured(ours: str, options: dict[str, Any], theirs: str, more: dict[str, Any]) -> tuple[float, float]:
    """Relative differences of value and gradient."""
    component, answers = COMPONENTS[ours], ANSWERS.leaf()
    loss = component.build(component.config(**options))
    mine = with_gradient(loss(answers.pairs()).mean(), answers)
    return differences(with_gradient(dpo(answers, theirs, beta=options["beta"], **more), answers), mine)


@pytest.mark.parametrize(("ours", "options", "theirs", "more"), CASES)
def test_a_loss_equals_that_of_trl_in_value_and_gradient(
    ours: str, options: dict[str, Any], theirs: str, more: dict[str, Any]
) -> None:
    value, gradient = measured(ours, options, theirs, more)
    assert value <= EXACT
    assert gradient <= EXACT


if __name__ == "__main__":
    for case in CASES:
        print(case[0], case[1], *(f"{each:.1e}" for each in measured(*case)))
