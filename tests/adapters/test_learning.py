"""Each adapter ends under its frozen base, by what it must and by more than chance. Minutes: run with -m soak."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from catalogue import expect, modules
from learning import learn


@pytest.mark.soak
@pytest.mark.parametrize("name", modules())
def test_two_hundred_steps_end_under_the_frozen_base_by_more_than_three_deviations(
    name: str, request: pytest.FixtureRequest
) -> None:
    """From English to Python, at the rate and above the margin that its test names; docs/adapters.md compares at searched rates."""
    expect(request, name)
    learned = learn(name)
    assert learned.is_enough, learned
