"""A student learns alike on every layout, and to the bit after a stop: loss, both of its terms, norms, weights, answers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

TOLERANCE = 2e-6
"""Bound of a figure, as a share of it and absolutely: sums of fp32 in another order."""
OF_MOVES = 2e-5
"""Bound of a weight, absolutely: Adam's steps of 1e-2 repeat the rounding of a gradient that is small."""
SGD = {"optimizer": {"name": "sgd", "lr": 0.5}}
PACKED = {"data": {"batching": "packing"}}
CAPPED = {
    "name": "gemma",
    "variant": "2-tiny",
    "window": 8,
    "final_softcap": 5.0,
    "vocab_size": 272,
    "dim": 32,
    "n_layers": 2,
}
CAPPED |= {"n_heads": 4, "n_kv_heads": 2, "ffn_dim": 48}
WRITES = {"name": "gkd", "on_policy": 0.5, "prompts": 4, "max_new_tokens": 8, "updates": 2}
KINDS: dict[str, dict[str, Any]] = {
    "rows": {},
    "packed": PACKED,
    "jsd": {"objective": {"divergence": "jsd", "beta": 0.3, "softmax_temperature": 2.0, "weight": 1.0}, **PACKED},
    "adapter": {"adapter": {"name": "lora", "rank": 2}},
    "capped": {"family": CAPPED, **PACKED},
    "writes": {"objective": WRITES},
}
"""The head of ``adapter`` is frozen, and that of ``capped`` is no plain matrix, and shared with the embedding."""
LAYOUTS: dict[str, dict[str, Any]] = {
    "zero2": {"stage": 2},
    "zero3": {"stage": 3},
    "zero1 micro": {"stage": 1, "micro": 1},
    "pipeline": {"stage": 1, "pipeline": 2, "micro": 2},
    "sequence": {"stage": 1, "sequence": 2},
}
CASES = [("packed", "zero3"), ("jsd", "sequence"), ("capped", "zero3"), ("rows", "pipeline"), ("writes", "pipeline")]
AT_NIGHT = [
    ("rows", "zero2"),
    ("packed", "sequence"),
    ("jsd", "zero1 micro"),
    ("adapter", "zero3"),
    ("capped", "pipeline"),
    ("capped", "sequence"),
    ("writes", "zero3"),
    ("writes", "sequence"),
]
Results = dict[str, Any]


@pytest.fixture(scope="module")
def one(launch_students: Callable[..., Results]) -> Results:
    resumed = {"packed": [2], "writes": [1, 2, 3]}
    cases = {
        name: {"stage": 0, **SGD, **kind, **({"do": "resume", "stops": resumed[name]} if name in resumed else {})}
        for name, kind in KINDS.items()
    }
    found = launch_students(1, cases)
    whole = {name: found[name]["whole"] if name in resumed else found[name] for name in cases}
    return whole | {"stopped": {name: found[name]["stopped"] for name in resumed}}


def in_two(cases: list[tuple[str, str]]) -> dict[str, Any]:
    return {f"{kind} {layout}": {**SGD, **KINDS[kind], **LAYOUTS[layout]} for kind, layout in cases}


@pytest.fixture(scope="module")
def two(launch_students: Callable[..., Results]) -> Results:
    return launch_students(2, {**in_two(CASES), "resumed": {**SGD, **PACKED, "stage": 3, "do": "resume", "stops": [2]}})


@pytest.fixture(scope="module")
def more(launch_students: Callable[..., Results]) -> Results:
    return launch_students(2, in_two(AT_NIGHT))


@pytest.mark.parametrize(("kind", "layout"), CASES)
def test_two_processes_learn_from_a_teacher_as_one_does(one: Results, two: Results, kind: str, layout: str) -> None:
    assert_alike(one[kind], two[f"{kind} {layout}"])


@pytest.mark.night
@pytest.mark.parametrize(("kind", "layout"), AT_NIGHT)
def test_two_processes_learn_alike_on_more_layouts(one: Results, more: Results, kind: str, layout: str) -> None:
    assert_alike(one[kind], more[f"{kind} {layout}"])


def assert_alike(expected: Results, found: Results) -> None:
    for before, after in zip(expected["answers"], found["answers"], strict=True):
        theirs, ours = json.loads(before), json.loads(after)
        assert ours.pop("divergence", 0.0) == pytest.approx(theirs.pop("divergence", 0.0), rel=1e-5)
        assert ours == theirs
    for before, after in zip(expected["records"], found["records"], strict=True):
        assert before.keys() == after.keys()
        for figure, value in before.items():
            assert after[figure] == pytest.approx(value, rel=TOLERANCE, abs=TOLERANCE), (before["step"], figure)
    for name, values in expected["weights"].items():
        assert found["weights"][name] == pytest.approx(values, abs=OF_MOVES), name


def test_something_is_learned_from_the_teacher(one: Results) -> None:
    """Without this the layouts would agree on nothing."""
    for kind in KINDS:
        records = one[kind]["records"]
        assert all(each["grad_norm"] > 1e-3 and each["divergence"] > 1e-3 for each in records), kind
        assert records[-1]["divergence"] < records[0]["divergence"], kind
    for each in one["rows"]["records"]:
        assert each["loss"] == pytest.approx((each["cross_entropy"] + each["divergence"]) / 2, rel=1e-6)
    sources = [json.loads(each)["source"] for each in one["writes"]["answers"]]
    assert {*sources} == {"student", "row"}


def test_an_evaluation_has_the_plain_loss_and_the_divergence(one: Results) -> None:
    last = one["rows"]["records"][-1]
    assert last["eval_loss"] == pytest.approx(last["eval_cross_entropy"], rel=1e-6)
    assert last["eval_perplexity"] == pytest.approx(math.exp(last["eval_loss"])) if "eval_perplexity" in last else True
    assert last["eval_divergence"] > 0
    assert one["writes"]["records"][-1]["eval_answer_divergence"] > 0


@pytest.mark.parametrize("kind", ["packed", "writes", "two processes"])
def test_a_run_that_was_stopped_after_any_step_goes_on_to_the_bit(one: Results, two: Results, kind: str) -> None:
    """After steps 1 and 3 of ``writes`` it is in the middle of an iteration."""
    whole = two["resumed"]["whole"] if kind == "two processes" else one[kind]
    stopped = two["resumed"]["stopped"] if kind == "two processes" else one["stopped"][kind]
    assert {step: found == whole for step, found in stopped.items()} == dict.fromkeys(stopped, True)
    assert stopped
