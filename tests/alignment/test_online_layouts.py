"""Answers that are kept, and pairs, are the same on every layout and after a stop; an iteration with nothing to learn from passes by."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

TOLERANCE = 2e-6
"""Bound of a figure, as a share of it, and absolutely: sums of fp32 in another order."""
OF_LOGPS = 1e-5
"""Of log-probabilities of tokens and answers and what follows from them, absolutely (nats)."""
BEST = {"name": "rejection", "keep": 2, "updates": 2}
ENOUGH = {"name": "rejection", "keep": 4, "least": -0.35}
PAIRS = {"name": "online-dpo", "updates": 2}
TERMS = {"name": "online-dpo", "sft": 0.5, "nll_on": "all", "ld_alpha": 0.5, "passes": 2}
FREE = {"name": "online-dpo", "loss": "simpo"}
OBJECTIVES: dict[str, dict[str, Any]] = {"best": BEST, "enough": ENOUGH, "pairs": PAIRS, "terms": TERMS, "free": FREE}
NOTHING: dict[str, dict[str, Any]] = {
    "kept": {"name": "rejection", "least": 5.0},
    "paired": {
        "name": "online-dpo",
        "max_new_tokens": 1,
        "truncated": "mask",
        "sft": 0.5,
        "nll_on": "all",
        "ld_alpha": 0.5,
    },
}
"""No answer is as good as that; answers of one token that end are all the same."""
LAYOUTS: dict[str, dict[str, Any]] = {
    "zero3": {"stage": 3},
    "zero1 micro": {"stage": 1, "micro": 2},
    "pipeline": {"stage": 1, "pipeline": 2, "micro": 2},
    "sequence": {"stage": 1, "sequence": 2},
}
CASES = [
    ("best", "zero3"),
    ("best", "pipeline"),
    ("best", "sequence"),
    ("enough", "zero1 micro"),
    ("pairs", "zero3"),
    ("pairs", "pipeline"),
    ("pairs", "sequence"),
    ("terms", "zero3"),
    ("terms", "pipeline"),
    ("terms", "sequence"),
    ("free", "zero1 micro"),
]
EMPTY = [(kind, layout) for kind in NOTHING for layout in ("zero3", "pipeline", "sequence")]
USUAL = {"length": 96, "optimizer": {"name": "adamw", "lr": 2e-3}}
"""Two prompts with two answers have to fit into a row. At larger rates Adam makes steps of what is rounding in a gradient of nearly 0."""
Results = dict[str, Any]


@pytest.fixture(scope="module")
def one(launch_prompts: Callable[..., Results]) -> Results:
    resumed = ("best", "pairs")
    cases = {
        name: {"stage": 0, "do": "resumed" if name in resumed else "trained", "objective": objective}
        for name, objective in OBJECTIVES.items()
    }
    found = launch_prompts(1, cases, **USUAL)
    return {name: found[name]["whole"] if name in resumed else found[name] for name in cases} | {
        "stopped": {name: found[name]["stopped"] for name in resumed}
    }


@pytest.fixture(scope="module")
def two(launch_prompts: Callable[..., Results]) -> Results:
    learned = {f"{name} {layout}": {"objective": OBJECTIVES[name], **LAYOUTS[layout]} for name, layout in CASES}
    nothing = {f"{name} {layout}": {"objective": NOTHING[name], **LAYOUTS[layout]} for name, layout in EMPTY}
    return launch_prompts(2, {name: {"do": "trained", **case} for name, case in (learned | nothing).items()}, **USUAL)


@pytest.mark.parametrize(("name", "layout"), CASES)
def test_two_processes_write_the_same_answers_and_learn_the_same_from_them(
    one: Results, two: Results, name: str, layout: str
) -> None:
    expected, found = one[name], two[f"{name} {layout}"]
    theirs, ours = (list(map(json.loads, each["answers"])) for each in (expected, found))
    for field in ("ids", "rewards", "finish", "row_id"):
        assert [each[field] for each in ours] == [each[field] for each in theirs]
    for before, after in zip(theirs, ours, strict=True):
        assert after.get("reference") == pytest.approx(before.get("reference"), abs=OF_LOGPS)
    for before, after in zip(expected["records"], found["records"], strict=True):
        assert before.keys() == after.keys()
        for figure, value in before.items():
            if "implicit_reward_accuracy" in figure and before["step"] == 1:
                continue  # of rewards that are 0, or rounding
            allowed = OF_LOGPS if "implicit" in figure or "logp" in figure else TOLERANCE
            assert after[figure] == pytest.approx(value, rel=TOLERANCE, abs=allowed), figure


def test_something_is_learned_from_some_answers_and_not_from_others(one: Results) -> None:
    """Without this the layouts would agree on nothing."""
    for name in ("best", "enough"):
        assert all(0 < each["answers_kept"] < 1 and each["grad_norm"] > 0 for each in one[name]["records"])
    assert any(0 < each["groups_empty"] < 1 for each in one["enough"]["records"])
    for name in ("pairs", "terms", "free"):
        assert all(each["groups_unpaired"] < 1 and each["pair_gap"] > 0 for each in one[name]["records"])
        measured = ["reference" in json.loads(each) for each in one[name]["answers"]]
        assert any(measured) == (name != "free")
        assert not all(measured)
    first, _, third, _ = (each["loss"] for each in one["pairs"]["records"])
    assert first == pytest.approx(math.log(2), abs=1e-6)
    assert abs(third - first) > 1e-4, "answers of the second iteration are compared with the model of step 0, too"


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("name", ["best", "pairs"])
def test_a_run_that_was_stopped_after_any_step_goes_on_to_the_bit(one: Results, name: str, step: int) -> None:
    """After the first and third it is in the middle of an iteration; the reference still is the model of step 0."""
    whole, stopped = one[name], one["stopped"][name][str(step)]
    for part in ("answers", "records", "weights"):
        assert stopped[part] == whole[part]


@pytest.mark.parametrize(("kind", "layout"), EMPTY)
def test_an_iteration_with_nothing_to_learn_from_is_counted_and_has_no_gradient(
    two: Results, kind: str, layout: str
) -> None:
    records = two[f"{kind} {layout}"]["records"]
    share = "groups_empty" if kind == "kept" else "groups_unpaired"
    assert [(each["loss"], each["grad_norm"], each[share]) for each in records] == [(0.0, 0.0, 1.0)] * 4
