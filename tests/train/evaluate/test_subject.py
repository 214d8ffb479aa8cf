"""One subject on every layout: the same answers, and training goes on as if nobody had asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mt_core.generation import Generation, GenerationConfig
from mt_train.evaluate import subject as module

WORKER = "train/evaluate/layout_worker.py"
Launch = Callable[..., dict[str, Any]]
LAYOUTS: dict[str, dict[str, Any]] = {
    **{f"zero{stage}": {"stage": stage} for stage in (0, 1, 2, 3)},
    "pipeline": {"stage": "auto", "pipeline": 2, "micro": 2},
    "sequence": {"stage": 1, "sequence": 2},
    "sequence3": {"stage": 3, "sequence": 2},
    "packed": {"stage": 1, "objective": "pretrain"},
    "averaged": {"stage": 2, "optimizer": {"name": "schedule-free-adamw", "lr": 1e-2}},
    "lora": {"stage": 3, "adapter": {"name": "lora", "rank": 4}},
}
ASKED_TWICE = {"steps": 4, "eval_every": 2}
DROPOUT = {**ASKED_TWICE, "model": {"dropout": 0.1}}
CASES = {name: {**case, **ASKED_TWICE, "do": "answer"} for name, case in LAYOUTS.items()}
"""With dropout the weights of one process and two differ: the answers are compared without."""
OF_ONE = {name: name if name in ("packed", "averaged", "lora") else "zero0" for name in LAYOUTS}
"""Layout of two processes → that of the one process which trains the same."""
UNTOUCHED = {f"dropout-{name}": {**case, **DROPOUT, "do": "compare"} for name, case in LAYOUTS.items()}
STOPPED = {
    f"stopped-{name}": {**LAYOUTS[name], **DROPOUT, "do": "stop"} for name in ("zero0", "zero3", "pipeline", "sequence")
}
AT_NIGHT = ("zero1", "zero2", "sequence")
"""Layouts between others, whose training is compared at night."""
WITHOUT_TEXTS = ("pipeline", "sequence", "sequence3")
"""Layouts that need two processes; one has no other than ZeRO for them."""


@pytest.fixture(scope="module")
def one(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    cases = {name: CASES[name] for name in set(OF_ONE.values())}
    return launch(WORKER, 1, tmp_path_factory.mktemp("one"), cases | untouched_of_one(night=False))


def untouched_of_one(*, night: bool) -> dict[str, Any]:
    wanted = [name for name in LAYOUTS if name not in WITHOUT_TEXTS and (name in AT_NIGHT) == night]
    return {f"dropout-{name}": UNTOUCHED[f"dropout-{name}"] for name in wanted}


@pytest.fixture(scope="module")
def two(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    untouched = {f"dropout-{name}": UNTOUCHED[f"dropout-{name}"] for name in LAYOUTS if name not in AT_NIGHT}
    return launch(WORKER, 2, tmp_path_factory.mktemp("two"), CASES | untouched | STOPPED)


@pytest.mark.parametrize("name", [f"dropout-{name}" for name in LAYOUTS if name not in AT_NIGHT])
def test_training_is_not_touched(one: dict[str, Any], two: dict[str, Any], name: str) -> None:
    for found in (one[name], two[name]) if name in one else (two[name],):
        assert_untouched(found)


@pytest.mark.night
def test_training_is_not_touched_on_layouts_between(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> None:
    one = launch(WORKER, 1, tmp_path_factory.mktemp("one"), untouched_of_one(night=True))
    two = launch(
        WORKER,
        2,
        tmp_path_factory.mktemp("two"),
        {f"dropout-{name}": UNTOUCHED[f"dropout-{name}"] for name in AT_NIGHT},
    )
    for found in (*one.values(), *two.values()):
        assert_untouched(found)


def assert_untouched(found: dict[str, Any]) -> None:
    """Assert the bits of training without questions, which were asked every second step."""
    assert found["different"] == []
    assert [figure is not None for figure in found["figures"]] == [False, True, False, True]


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_gives_the_same_answers(one: dict[str, Any], two: dict[str, Any], name: str) -> None:
    alone, shared = one[OF_ONE[name]], two[name]
    for found in (alone, shared):
        assert [figure is not None for figure in found["figures"]] == [False, True, False, True]
    np.testing.assert_allclose(
        [each[0] for each in shared["answers"]], [each[0] for each in alone["answers"]], atol=1e-4
    )
    assert [each[1] for each in shared["answers"]] == [each[1] for each in alone["answers"]]
    assert bool(alone["texts"]), "one process can always write"
    assert shared["texts"] == ([] if name in WITHOUT_TEXTS else alone["texts"])


@pytest.mark.parametrize("name", STOPPED)
def test_a_run_that_is_stopped_inside_an_evaluation_owes_it(two: dict[str, Any], name: str) -> None:
    found = two[name]
    assert found == {"different": [], "finished": False, "owed": True, "evaluated": 0}


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_a_prompt_that_is_asked_many_times_is_read_by_few_ranks(world: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four answers to each of three prompts: with three ranks each has one prompt. All get all texts, in the order of the prompts."""
    prompts = [[10 + number] for number in range(3) for _ in range(4)]
    said: list[str] = []

    def write(mine: Sequence[Sequence[int]], config: GenerationConfig, indices: Sequence[int]) -> list[Generation]:
        read.append({tuple(prompt) for prompt in mine})
        return [Generation(str(index), tuple(prompt), "length") for prompt, index in zip(mine, indices, strict=True)]

    def ask(rank: int) -> list[Generation]:
        asked = module.LiveSubject.__new__(module.LiveSubject)
        asked.requests, asked._batch_size, asked._stop = 0, 8, lambda: False
        asked._engine = SimpleNamespace(process=SimpleNamespace(rank=rank, world=world))  # type: ignore[assignment]
        return asked._generate(prompts, GenerationConfig(), write)

    monkeypatch.setattr(module, "agree", bool)
    read: list[set[tuple[int, ...]]] = []
    for rank in range(world):
        monkeypatch.setattr(module, "gather_texts", lambda text: said.append(text) or [text])
        ask(rank)
    assert max(map(len, read)) == {1: 3, 2: 2, 3: 1, 5: 2}[world]
    monkeypatch.setattr(module, "gather_texts", lambda text: said)
    found = ask(0)
    assert [each.text for each in found] == [str(index) for index in range(12)]
    assert [list(each.ids) for each in found] == prompts
