"""Whose answers are learned, what becomes of rows, and the figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mt_conformance import trainer
from mt_core import DataError
from mt_core.generation import Generation, GenerationConfig
from mt_core.media import MEDIA_MARK, MediaPart
from mt_core.plugins.host import PluginHost
from mt_plugin_distillation.objectives.gkd import GkdObjective
from mt_plugin_distillation.options import GkdConfig
from mt_train import Prompt
from mt_train.config.data import DataConfig

ROWS: list[dict[str, Any]] = [
    {"prompt": "1 + 1 = ", "response": "2, and no more"},
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello there"}]},
    {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
            {"role": "assistant", "content": "d"},
        ]
    },
    {"instruction": "say", "output": "it"},
    {"prompt": "which? ", "choices": ["x", "y"], "answer": "B"},
    {"prompt": "p", "chosen": "good", "rejected": "bad"},
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    component = PluginHost.discover().get("tokenizer", "byte").component
    return component.build(component.config())


@pytest.fixture
def build(tokenizer: Any, teacher: Path) -> Any:
    template = trainer.build_template(tokenizer, DataConfig(template="chatml"))
    return lambda **options: GkdObjective(tokenizer, template, GkdConfig(teacher_path=teacher, **options))


class Writer:
    """A policy that answers each prompt with its number among those that are asked, and measures 0.5 everywhere."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.measured = 0

    def generate(self, prompts: Any, config: GenerationConfig, *, weights: str) -> list[Generation]:
        self.asked, self.config, self.weights = list(prompts), config, weights
        ends = [("eos", 258), ("length", None)]
        return [Generation(str(n), (48 + n,), ends[n % 2][0], ends[n % 2][1]) for n in range(len(self.asked))]  # type: ignore[arg-type]

    def measure(self, samples: Any, measure: Any) -> list[dict[str, Any]]:
        import numpy as np

        self.measured += 1
        return [{"divergence": np.full(sum(each.trained), 0.5)} for each in samples]


def prompts(objective: GkdObjective) -> list[Prompt]:
    rows = [{"id": f"row {number}", **row} for number, row in enumerate(ROWS)]
    return [Prompt(row, objective.encode(row).ids) for row in rows]


def test_prompts_of_every_shape_end_where_the_answer_begins(build: Any, tokenizer: Any) -> None:
    found = [tokenizer.decode(list(each.ids)) for each in prompts(build(on_policy=0.5))]
    user, assistant = "<|im_start|>user\n{}<|im_end|>\n", "<|im_start|>assistant\n{}<|im_end|>\n"
    asked = ["1 + 1 = ", "hi", "a", "say", "which? \nA. x\nB. y\nAnswer:", "p"]
    expected = [user.format(text) for text in asked]
    expected[2] += assistant.format("b") + user.format("c")
    assert found == [text + "<|im_start|>assistant\n" for text in expected]


def test_the_share_of_prompts_that_the_student_answers_is_that_asked_for(build: Any) -> None:
    for share in (0.0, 0.25, 0.6, 1.0):
        objective = build(on_policy=share)
        counts = [len(objective._choose(6, seed)) for seed in range(400)]
        assert sum(counts) / 2400 == pytest.approx(share, abs=0.02)
        assert {*counts} <= {int(6 * share), int(6 * share) + 1}
    each = [number for seed in range(600) for number in objective._choose(6, seed)]
    assert {*each} == set(range(6))


def test_others_have_the_answer_of_their_row_cut_to_the_longest_one(build: Any, tokenizer: Any) -> None:
    objective, writer = build(on_policy=0.0, max_new_tokens=5), Writer()
    records = objective.collect(prompts(objective), writer, seed=1, previous=())
    assert not writer.asked
    assert [each["source"] for each in records] == ["row"] * len(ROWS)
    assert (records[0]["text"], records[0]["finish"]) == ("2, an", "length")
    assert records[2]["text"].startswith("d<|i")
    assert records[2]["prompt_text"].endswith("c<|im_end|>\n<|im_start|>assistant\n")
    samples, figures = objective.learn(records)
    for record, sample in zip(records, samples, strict=True):
        assert list(sample.ids) == [*record["prompt"], *record["ids"]]
        assert list(sample.trained) == [False] * len(record["prompt"]) + [True] * len(record["ids"])
    assert figures["answers_on_policy"] == 0.0
    assert "answers_cut" not in figures


def test_an_answer_of_a_row_weighs_what_its_turn_says_and_one_that_is_not_to_be_trained_on_is_refused(
    build: Any,
) -> None:
    objective, turns = build(on_policy=0.0), ROWS[2]["messages"]
    weighed = {"id": "row 1", "messages": [*turns[:3], {**turns[3], "weight": 0.5}]}
    (record,) = objective.collect([Prompt(weighed, objective.encode(weighed).ids)], Writer(), seed=1, previous=[{}])
    (sample,), _ = objective.learn([record])
    assert sample.weights is not None
    assert {*zip(sample.trained, sample.weights, strict=True)} == {(False, 1.0), (True, 0.5)}
    bad = {"id": "row 1", "messages": [*turns[:3], {**turns[3], "train": False}]}
    with pytest.raises(DataError, match="row 1: its last answer has no token to train on behind a prompt"):
        objective.encode(bad)


def test_an_answer_begins_behind_its_prompt_whatever_is_trained_on(tokenizer: Any, teacher: Path) -> None:
    """``data.train_on: all`` marks prompts, too."""
    found = []
    for train_on in ("assistant", "all"):
        template = trainer.build_template(tokenizer, DataConfig(template="chatml", train_on=train_on))
        objective = GkdObjective(tokenizer, template, GkdConfig(teacher_path=teacher, on_policy=0.0))
        found.append(objective.collect(prompts(objective), Writer(), seed=1, previous=[{}]))
    for one, other in zip(*found, strict=True):
        assert one["prompt"] == other["prompt"]
        assert other["ids"][: len(one["ids"])] == one["ids"]


def test_what_the_student_writes_is_learned_with_its_end(build: Any) -> None:
    objective, writer = build(on_policy=1.0, temperature=0.7, top_p=0.9, top_k=5, max_new_tokens=9), Writer()
    given = prompts(objective)
    records = objective.collect(given, writer, seed=7, previous=[{}])
    rules = writer.config.rules
    assert (rules.temperature, rules.top_p, rules.top_k) == (0.7, 0.9, 5)
    assert (writer.config.max_new_tokens, writer.config.seed, writer.weights) == (9, 7, "auto")
    assert writer.asked == [each.ids for each in given]
    assert [each["ids"] for each in records[:2]] == [[48, 258], [49]]
    _, figures = objective.learn(records)
    assert figures == {"answer_tokens": 1.5, "answers_on_policy": 1.0, "answers_cut": 0.5}
    assert not writer.measured


def test_answers_to_held_out_prompts_are_compared_with_the_teacher(build: Any) -> None:
    objective, writer = build(), Writer()
    records = objective.collect(prompts(objective), writer, seed=7, previous=())
    assert writer.measured == 1
    assert objective.learn(records)[1]["answer_divergence"] == 0.5


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "only"}, r"no field 'response'.*With on_policy=0.5 rows have answers, too: give it one, or set"),
        ({"text": "only"}, "no prompt; fields found: text. Name it"),
    ],
)
def test_a_row_without_what_is_needed_is_refused(build: Any, row: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=f"(?s)row 1: .*{said}|row 1: {said}"):
        build(on_policy=0.5).encode({"id": "row 1", **row})
    if "prompt" in row:
        assert build().encode({"id": "row 1", **row}).ids, "all prompts are answered by the student"


def test_media_are_refused(build: Any) -> None:
    picture = (MediaPart("image", "x.png"),)
    plain: list[dict[str, Any]] = [{"role": "user", "content": "look"}, {"role": "assistant", "content": "so"}]
    for number in range(2):
        turns = [
            {**turn, "content": MEDIA_MARK, "media": picture} if n == number else turn for n, turn in enumerate(plain)
        ]
        with pytest.raises(DataError, match="row 1: the row has media, and a teacher reads text alone"):
            build(on_policy=0.5).encode({"id": "row 1", "messages": turns})
