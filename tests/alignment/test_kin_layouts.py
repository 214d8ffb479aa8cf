"""Kin of GRPO, which measure more and write more than it does, are the same on every layout too, and go on to the bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

TOLERANCE = 2e-6
"""Bound of a figure, as a share of it, and absolutely: sums of fp32 in another order."""
KIN: dict[str, dict[str, Any]] = {
    "gspo": {"name": "gspo", "updates": 2, "clip_low": 0.001, "clip_high": 0.001, "temperature": 0.8},
    "rloo": {"name": "rloo", "updates": 2, "kl": 0.2},
    "reinforce": {"name": "reinforce-plus-plus", "group": 2, "kl": 0.2, "mean": "constant"},
    "remax": {"name": "remax", "group": 2, "mean": "prompt", "importance": "token", "updates": 2},
    "sapo": {"name": "sapo", "group": 2, "updates": 2, "entropy_weight": 0.1},
    "dapo": {
        "name": "dapo",
        "group": 2,
        "updates": 2,
        "kl": 0.2,
        "dual_clip": 3.0,
        "mean": "answer",
    },
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "zero3": {"stage": 3, "micro": 2},
    "pipeline": {"stage": 1, "pipeline": 2, "micro": 2},
    "sequence": {"stage": 1, "sequence": 2},
}
Results = dict[str, Any]


@pytest.fixture(scope="module")
def one(launch_prompts: Callable[..., Results]) -> Results:
    cases = {name: {"stage": 0, "do": "trained", "objective": each} for name, each in KIN.items()}
    return launch_prompts(
        1, cases | {"resumed": {"stage": 0, "do": "resumed", "objective": KIN["dapo"]}}, steps=4, eval_every=4
    )


@pytest.fixture(scope="module")
def two(launch_prompts: Callable[..., Results]) -> Results:
    cases = {
        f"{name} {method}": {**layout, "do": "trained", "objective": each}
        for name, layout in LAYOUTS.items()
        for method, each in KIN.items()
    }
    return launch_prompts(2, cases, steps=4, eval_every=4)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("method", KIN)
def test_two_processes_write_and_learn_the_same(one: Results, two: Results, method: str, layout: str) -> None:
    expected, found = one[method], two[f"{layout} {method}"]
    theirs, ours = (list(map(json.loads, each["answers"])) for each in (expected, found))
    assert [each["ids"] for each in ours] == [each["ids"] for each in theirs]
    assert [each["rewards"] for each in ours] == [each["rewards"] for each in theirs]
    for before, after in zip(expected["records"], found["records"], strict=True):
        assert before.keys() == after.keys()
        for name, value in before.items():
            assert after[name] == pytest.approx(value, rel=TOLERANCE, abs=TOLERANCE), name


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_run_that_was_stopped_after_any_step_goes_on_to_the_bit(one: Results, step: int) -> None:
    """After the first and third it is in the middle of an iteration, whose answers were measured under both models."""
    whole, stopped = one["resumed"]["whole"], one["resumed"]["stopped"][str(step)]
    assert stopped["answers"] == whole["answers"]
    assert stopped["records"] == whole["records"]
    assert stopped["weights"] == whole["weights"]


def test_what_the_methods_add_is_seen(one: Results) -> None:
    """The model leaves its start, is held, and is no other than its sampler."""
    last = {method: found["records"][-1] for method, found in one.items() if method != "resumed"}
    assert all(each["grad_norm"] > 0 for each in last.values())
    assert last["rloo"]["kl"] > 0
    assert "kl_loss" not in last["rloo"]
    assert last["dapo"]["kl_loss"] > 0
    assert last["gspo"]["clipped_low"] + last["gspo"]["clipped_high"] > 0
    assert last["remax"]["sampler_ratio"] == pytest.approx(1.0, abs=1e-5)
    assert max(each["groups_resampled"] for each in one["dapo"]["records"]) > 0
    assert "greedy" in json.loads(one["remax"]["answers"][0])
    assert all(
        "reward" not in name or name.startswith(("reward", "eval_reward")) for each in last.values() for name in each
    )
