"""Answers of a model that learns from them are the same on every layout, and a run that was stopped anywhere goes on to the bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

TOLERANCE = 2e-6
"""Bound of a figure, as a share of it, and absolutely: sums of fp32 in another order."""
TWICE = {"updates": 2}
TWO: dict[str, dict[str, Any]] = {
    "zero0": {"stage": 0},
    "zero1 micro": {"stage": 1, "micro": 2},
    "zero2": {"stage": 2},
    "zero3": {"stage": 3},
    "zero3 twice": {"stage": 3, "objective": TWICE},
    "pipeline": {"stage": 1, "pipeline": 2, "micro": 2},
    "pipeline twice": {"stage": 1, "pipeline": 2, "micro": 4, "objective": TWICE},
    "sequence": {"stage": 1, "sequence": 2},
    "sequence 3 twice": {"stage": 3, "sequence": 2, "objective": TWICE},
}
LORA = {"name": "lora", "rank": 4}
POLICIES: dict[str, dict[str, Any]] = {
    "zero2 full": {"stage": 2},
    "zero3 full": {"stage": 3},
    "zero3 lora": {"stage": 3, "adapter": LORA},
    "pipeline full": {"stage": 1, "pipeline": 2, "micro": 2},
    "pipeline lora": {"stage": 1, "pipeline": 2, "micro": 2, "adapter": LORA},
    "sequence full": {"stage": 1, "sequence": 2},
    "sequence lora": {"stage": 1, "sequence": 2, "adapter": LORA},
    "zero1 pissa": {"stage": 1, "adapter": {"name": "pissa", "rank": 4}},
}
"""What collecting is given, after two steps of training."""
TOOLS: dict[str, dict[str, Any]] = {
    "tools zero0": {"stage": 0},
    "tools zero3": {"stage": 3},
    "tools pipeline": {"stage": 1, "pipeline": 2, "micro": 2},
    "tools sequence": {"stage": 1, "sequence": 2},
}
"""Answers that read something of a tool are learned from."""
LARGER = {"dim": 128, "n_layers": 4, "ffn_dim": 384}
"""A model that is far larger than what a prompt needs on its way through it."""
Results = dict[str, Any]


@pytest.fixture(scope="module")
def one(launch_prompts: Callable[..., Results]) -> Results:
    cases: dict[str, dict[str, Any]] = {
        "plain": {"stage": 0, "do": "trained"},
        "twice": {"stage": 0, "do": "resumed", "objective": TWICE},
    }
    alone = {case.split()[1]: {**layout, "stage": 0, "pipeline": 1} for case, layout in POLICIES.items()}
    memory = {
        f"memory {name}": {"stage": 0, "do": "memory", "model": LARGER, "adapter": alone[name].get("adapter", "full")}
        for name in ("full", "lora")
    }
    return launch_prompts(
        1, cases | memory | {name: {**case, "do": "policy", "steps": 2} for name, case in alone.items()}
    )


@pytest.fixture(scope="module")
def two(launch_prompts: Callable[..., Results], one: Results, tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "rollouts.jsonl").write_text("".join(line + "\n" for line in one["twice"]["whole"]["answers"]))
    again = {**TWICE, "replay": str(folder)}
    replayed = {"replayed twice": {"stage": 3, "do": "trained", "objective": again}}
    reading = folder / "reading"
    reading.mkdir()
    (reading / "rollouts.jsonl").write_text(
        "".join(f"{with_read(line)}\n" for line in one["twice"]["whole"]["answers"])
    )
    given = {**TWICE, "replay": str(reading)}
    replayed |= {name: {**case, "do": "trained", "objective": given} for name, case in TOOLS.items()}
    policies = {name: {**case, "do": "policy", "steps": 2} for name, case in POLICIES.items()}
    return launch_prompts(2, {name: {"do": "trained", **case} for name, case in TWO.items()} | policies | replayed)


def with_read(line: str) -> str:
    """An answer that read three tokens of a tool before its third token, and one before its last."""
    record = json.loads(line)
    count = len(record["ids"])
    read = [[2, [65, 66, 67]], [count - 1, [68]]] if count > 3 else []
    return json.dumps({**record, "read": read, "calls": len(read), "failed_calls": 0})


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


def test_recorded_answers_are_learned_from_on_another_layout(one: Results, two: Results) -> None:
    expected, found = one["twice"]["whole"], two["replayed twice"]
    assert found["answers"] == expected["answers"]
    for before, after in zip(expected["records"], found["records"], strict=True):
        for name in ("loss", "grad_norm", "reward", "ratio"):
            assert after[name] == pytest.approx(before[name], rel=TOLERANCE, abs=TOLERANCE), name


@pytest.mark.parametrize("layout", list(TOOLS)[1:])
def test_answers_that_read_of_tools_are_learned_from_alike_on_every_layout(two: Results, layout: str) -> None:
    plain, expected, found = (two[name]["records"] for name in ("replayed twice", "tools zero0", layout))
    assert expected[0]["loss"] != plain[0]["loss"], "what was read is in the context"
    assert [each["tokens"] for each in expected] == [each["tokens"] for each in plain], "and none of it is learned"
    for before, after in zip(expected, found, strict=True):
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


@pytest.mark.parametrize("layout", POLICIES)
def test_what_collecting_is_given_is_the_same_on_every_layout(one: Results, two: Results, layout: str) -> None:
    """Values of tokens to 1e-5 nats; texts to the token; merged weights to a thousandth of what two steps of Adam move them."""
    expected, found = one[layout.split()[1]], two[layout]
    for time in ("first", "last"):
        theirs, ours = expected[time], found[time]
        for view, rows in theirs["measured"].items():
            for before, after in zip(rows, ours["measured"][view], strict=True):
                assert after == pytest.approx(before, abs=1e-5), (time, view)
        for weights, texts in ours["written"].items():
            assert texts == theirs["written"]["live"], (time, weights)
        assert ours["merged"].keys() == theirs["merged"].keys()
        for name, value in theirs["merged"].items():
            assert ours["merged"][name] == pytest.approx(value, abs=1e-6 if time == "first" else 2e-5), (time, name)
        assert ours["once"] == [1, "a"]
        assert theirs["divided"] == [each * 5 for each in "abcde"]
        assert ours["divided"] == [each * (3 - number % 2) for number, each in enumerate("abcde")]
        shares = "pipeline" in layout or "sequence" in layout
        assert ours["refused"].startswith("the weights of this layout write no texts") == shares


@pytest.mark.parametrize("layout", POLICIES)
def test_the_reference_is_the_model_of_step_0_also_when_the_model_has_moved(two: Results, layout: str) -> None:
    first, last = two[layout]["first"]["measured"], two[layout]["last"]["measured"]
    rows = list(zip(first["live"], last["reference"], last["live"], strict=True))
    assert all(after == pytest.approx(before, abs=2e-5) for before, after, _ in rows)
    assert max(abs(a - b) for before, _, live in rows for a, b in zip(before, live, strict=True)) > 1e-3


@pytest.mark.parametrize("layout", POLICIES)
def test_there_is_a_model_of_step_0_only_where_no_adapter_stands_for_it(two: Results, layout: str) -> None:
    """PiSSA rewrites its base, so that it has none."""
    assert two[layout]["last"]["has_reference"] is not layout.endswith("lora")


def test_the_reference_of_an_adapter_needs_no_memory_for_a_model(one: Results) -> None:
    """A tenth of one is enough for a prompt; without an adapter it is a model, which shows that this counts."""
    lora, full = one["memory lora"], one["memory full"]
    assert lora["held"] < 0.1 * lora["weights"]
    assert full["held"] > full["weights"]
