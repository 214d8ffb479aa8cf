"""Rounds of training, measuring and writing on every layout, where some answers end at once and others never: nothing hangs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

LAYOUTS: dict[str, dict[str, Any]] = {
    "zero0": {"stage": 0},
    "zero1": {"stage": 1},
    "zero2": {"stage": 2},
    "zero3": {"stage": 3},
    "pipeline": {"stage": 1, "pipeline": 2, "micro": 2},
    "sequence": {"stage": 1, "sequence": 2},
    "zero3 lora": {"stage": 3, "adapter": {"name": "lora", "rank": 4}},
}
MOST, ROUNDS = 40, 3
USUAL: dict[str, Any] = {"do": "rounds", "objective": {"updates": 2, "max_new_tokens": MOST}}
Results = dict[str, Any]

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def one(launch_prompts: Callable[..., Results]) -> Results:
    lora = LAYOUTS["zero3 lora"]["adapter"]
    return launch_prompts(1, {"full": {"stage": 0}, "lora": {"stage": 0, "adapter": lora}}, **USUAL)


@pytest.fixture(scope="module")
def two(launch_prompts: Callable[..., Results]) -> Results:
    return launch_prompts(2, LAYOUTS, **USUAL)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_three_rounds_with_ragged_ends_give_the_same_on_every_layout(one: Results, two: Results, layout: str) -> None:
    expected, found = one["lora" if layout.endswith("lora") else "full"], two[layout]
    theirs, ours = ([json.loads(line)["ids"] for line in each["answers"]] for each in (expected, found))
    assert ours == theirs
    lengths = [len(ids) for ids in ours]
    assert (min(lengths), max(lengths)) == (1, MOST), "some end at once, and some never"
    assert len(found["seen"]) == ROUNDS
    for before, after in zip(expected["seen"], found["seen"], strict=True):
        for weights, texts in after["written"].items():
            assert texts == before["written"]["live"], weights
        for view, rows in before["measured"].items():
            for values, others in zip(rows, after["measured"][view], strict=True):
                assert others == pytest.approx(values, abs=5e-5), view
    for step, other in zip(expected["records"], found["records"], strict=True):
        assert other["loss"] == pytest.approx(step["loss"], abs=1e-5)
        assert other["grad_norm"] == pytest.approx(step["grad_norm"], rel=1e-4)
