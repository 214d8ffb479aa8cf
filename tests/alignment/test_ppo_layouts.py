"""PPO on every layout: the same answers, the same losses of policy and critic; a run that was stopped anywhere goes on to the bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

TOLERANCE, OF_MOVED = 1e-6, 5e-6
"""Bounds of a figure, as a share of it, and absolutely: sums of fp32 in another order; once AdamW has divided small gradients by small
moments, two steps and more from the start, they are further apart (3e-6 was seen)."""
VALUE_HEAD = "lm_head.objective.value_head.weight"
PPO = {"name": "ppo", "prompts": 4, "group": 2, "passes": 2, "kl": 0.1, "kl_target": 0.5, "kl_horizon": 20}
"""Each iteration is two steps, and the second iteration has another β."""
TWO: dict[str, dict[str, Any]] = {
    "zero0": {"stage": 0},
    "zero1 micro": {"stage": 1, "micro": 2},
    "zero2 packed": {"stage": 2, "data": {"batching": "packing"}},
    "zero3": {"stage": 3},
    "pipeline": {"stage": 1, "pipeline": 2, "micro": 2},
    "sequence": {"stage": 1, "sequence": 2},
    "sequence zero3": {"stage": 3, "sequence": 2},
}
ADAPTER = {"name": "lora", "rank": 4}
LORA: dict[str, dict[str, Any]] = {
    "zero3": {"stage": 3},
    "pipeline": {"stage": 1, "pipeline": 2, "micro": 2},
    "sequence": {"stage": 2, "sequence": 2},
}
"""Where the reference is the base under the adapter, and the value head is trained beside that."""
Results = dict[str, Any]


@pytest.fixture(scope="module")
def one(launch_prompts: Callable[..., Results]) -> Results:
    return launch_prompts(
        1,
        {"full": {"stage": 0, "do": "resumed"}, "lora": {"stage": 0, "do": "trained", "adapter": ADAPTER}},
        objective=PPO,
    )


@pytest.fixture(scope="module")
def two(launch_prompts: Callable[..., Results]) -> Results:
    cases = {name: {"do": "trained", **case} for name, case in TWO.items()}
    cases |= {f"{name} lora": {"do": "trained", "adapter": ADAPTER, **case} for name, case in LORA.items()}
    return launch_prompts(2, {**cases, "resumed": {"do": "resumed", "stage": 3}}, objective=PPO)


@pytest.mark.parametrize("layout", [*TWO, *(f"{name} lora" for name in LORA)])
def test_two_processes_write_the_same_answers_and_learn_the_same_from_them(
    one: Results, two: Results, layout: str
) -> None:
    expected, found = one["lora"] if layout.endswith("lora") else one["full"]["whole"], two[layout]
    theirs, ours = (list(map(json.loads, each["answers"])) for each in (expected, found))
    assert [each["ids"] for each in ours] == [each["ids"] for each in theirs]
    for name in ("value", "old", "reference"):
        for before, after in zip(theirs, ours, strict=True):
            assert after[name] == pytest.approx(before[name], abs=1e-5), name
    for before, after in zip(expected["records"], found["records"], strict=True):
        assert before.keys() == after.keys()
        bound = TOLERANCE if after["step"] <= 2 else OF_MOVED
        for name, value in before.items():
            assert after[name] == pytest.approx(value, rel=bound, abs=bound), (after["step"], name)
    assert found["weights"].keys() == expected["weights"].keys()
    assert found["weights"][VALUE_HEAD] == pytest.approx(expected["weights"][VALUE_HEAD], abs=1e-5)


def test_the_critic_is_trained_and_beta_follows_the_divergence(one: Results) -> None:
    records = one["full"]["whole"]["records"]
    assert records[0]["kl"] == pytest.approx(0, abs=1e-6), "at first the model is its own reference"
    assert records[0]["kl_weight"] == 0.1
    assert records[2]["kl_weight"] == pytest.approx(0.1 * (1 - 0.2 * 8 / 20), rel=1e-9), "0 is below its target"
    assert records[1]["value_loss"] < records[0]["value_loss"]
    assert records[2]["kl"] != 0


def test_a_record_has_the_rewards_and_no_other_figure_of_that_name(one: Results) -> None:
    last = one["full"]["whole"]["records"][-1]
    assert {name for name in last if "reward" in name and not name.startswith("eval_")} == {
        "reward",
        "reward_pattern",
        "reward_length",
    }
    figures = {
        "value_loss",
        "explained_variance",
        "entropy",
        "ratio",
        "ratio_far",
        "clipped_low",
        "clipped_high",
        "clipped_value",
    }
    assert last.keys() >= figures | {"kl", "kl_weight", "answer_tokens", "answers_cut", "eval_reward"}


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("world", [1, 2])
def test_a_run_that_was_stopped_after_any_step_goes_on_to_the_bit(
    one: Results, two: Results, world: int, step: int
) -> None:
    """After the first and third it is in the middle of an iteration, after the second before the answers of the next one."""
    whole, stopped = (found := one["full"] if world == 1 else two["resumed"])["whole"], found["stopped"][str(step)]
    assert stopped["answers"] == whole["answers"]
    assert stopped["records"] == whole["records"]
    assert VALUE_HEAD in whole["weights"]
    assert stopped["weights"] == whole["weights"]
