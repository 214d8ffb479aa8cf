"""Answers of a model that learns from them are the same on every layout, and a run that was stopped anywhere goes on to the bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

WORKER = "alignment/grpo_worker.py"
TOLERANCE = 2e-6
"""Bound of a figure, as a share of it, and absolutely: sums of fp32 in another order."""
TWICE = {"updates": 2}
TWO: dict[str, dict[str, Any]] = {
    "zero0": {"stage": 0},
    "zero1 micro": {"stage": 1, "micro": 2},
    "zero2": {"stage": 2},
    "zero3": {"stage": 3},
    "zero3 twice": {"stage": 3, "objective": TWICE},
}
Results = dict[str, Any]


@pytest.fixture(scope="module")
def launched(
    launch: Callable[..., Results], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int, dict[str, dict[str, Any]]], Results]:
    rows = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    rows.write_text("".join(json.dumps({"prompt": "go on: " + "abc"[n % 3] * (1 + n % 7)}) + "\n" for n in range(14)))
    return lambda world, cases: launch(
        WORKER,
        world,
        tmp_path_factory.mktemp("out"),
        {name: {**each, "rows": str(rows)} for name, each in cases.items()},
    )


@pytest.fixture(scope="module")
def one(launched: Callable[..., Results]) -> Results:
    cases: dict[str, dict[str, Any]] = {
        "plain": {"stage": 0, "do": "trained"},
        "twice": {"stage": 0, "do": "resumed", "objective": TWICE},
    }
    return launched(1, cases)


@pytest.fixture(scope="module")
def two(launched: Callable[..., Results]) -> Results:
    return launched(2, {name: {"do": "trained", **case} for name, case in TWO.items()})


@pytest.mark.parametrize("layout", TWO)
def test_two_processes_write_the_same_answers_and_learn_the_same_from_them(
    one: Results, two: Results, layout: str
) -> None:
    """Answers to the token, in every iteration: a difference in the last bit of a weight has never been a difference of a token here."""
    expected = one["twice"]["whole"] if layout.endswith("twice") else one["plain"]
    found = two[layout]
    theirs, ours = (list(map(json.loads, each["answers"])) for each in (expected, found))
    assert [each["ids"] for each in ours] == [each["ids"] for each in theirs]
    assert [each["rewards"] for each in ours] == [each["rewards"] for each in theirs]
    for before, after in zip(expected["records"], found["records"], strict=True):
        assert before.keys() == after.keys()
        for name, value in before.items():
            assert after[name] == pytest.approx(value, rel=TOLERANCE, abs=TOLERANCE), name


def test_a_record_has_the_rewards_and_no_other_figure_of_that_name(one: Results) -> None:
    last = one["plain"]["records"][-1]
    assert {name for name in last if name.startswith("reward")} == {"reward", "reward_pattern", "reward_length"}
    assert last["reward"] == pytest.approx(last["reward_pattern"] + 0.5 * last["reward_length"], abs=1e-12)
    assert {name for name in last if name.startswith("eval_reward")} == {
        "eval_reward",
        "eval_reward_pattern",
        "eval_reward_length",
    }


def test_each_prompt_is_answered_once_in_an_epoch(one: Results) -> None:
    """Ten prompts, four in an iteration: the third has two."""
    answers = list(map(json.loads, one["plain"]["answers"]))
    asked = [[each["row_id"] for each in answers if each["iteration"] == number] for number in range(3)]
    assert [len(each) for each in asked] == [16, 16, 8]
    first_epoch = [row for each in asked for row in each[::4]]
    assert len(set(first_epoch)) == 10


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_run_that_was_stopped_after_any_step_goes_on_to_the_bit(one: Results, step: int) -> None:
    """After the first and third it is in the middle of an iteration."""
    whole, stopped = one["twice"]["whole"], one["twice"]["stopped"][str(step)]
    assert stopped["answers"] == whole["answers"]
    assert stopped["records"] == whole["records"]
    assert stopped["weights"] == whole["weights"]
