"""Objectives that keep some of the model's own answers: which ones, and that they learn from them as from the same rows of a file.

The files are made of answers of a small model that has learned to write letters and to end: these are texts that can be read back.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from mt_core import Sample, UsageError
from mt_core.generation import Generation, GenerationConfig
from mt_plugin_alignment.losses.sigmoid import Sigmoid, SigmoidConfig
from mt_plugin_alignment.objectives.online_config import OnlineDpoConfig, RejectionConfig
from mt_plugin_alignment.objectives.online_pairs import OnlineDpoObjective
from mt_plugin_alignment.objectives.rejection import RejectionObjective
from mt_plugin_alignment.reward_functions.texts import Length, LengthConfig
from mt_tools.cli.convert import main as mt_convert
from mt_train import Prompt
from mt_train.cli.train import main

SIZES = "--model llama --model.dim 16 --model.n-layers 1 --model.n-heads 2 --model.n-kv-heads 2"
PROMPTS = [f"{n}: " for n in range(8)]
REWARD = """
def score(answers):
    whole = (len(each.ids) - 1 == len(each.text) == len(each.text.encode()) > 0 for each in answers)
    return [float(each.text.count("e")) if fine else None for each, fine in zip(answers, whole)]
"""
"""Letters of answers that are not empty, that end, and whose text says which tokens they are made of."""
WRITTEN = ("e", "ea", "tee", "at", "sea", "eel")
"""Answers that the small model has learned, one after another for each prompt."""
AS_IN_A_FILE = {"loss": 1e-6, "grad_norm": 2e-6}
"""Bounds as shares: sums of fp32 in another order."""


def answer(
    group: int, reward: float | None, ids: Sequence[int] | None = None, finish: str = "eos", **more: Any
) -> dict[str, Any]:
    """A record of an answer; its tokens tell it from others."""
    ids = [10 + int(100 * (reward or 0.0))] if ids is None else list(ids)
    return {
        "row_id": f"row {group}",
        "group": group,
        "prompt": [1],
        "ids": ids,
        "finish": finish,
        "rewards": {"one": reward},
    } | more


REWARDS = {"one": Length(LengthConfig(most=1, ramp=8))}


class _Tokenizer:
    pad_id, eos_id = 0, 2

    def decode(self, ids: Sequence[int]) -> str:
        return "a" * len(ids)


def rejection(**options: Any) -> RejectionObjective:
    return RejectionObjective(_Tokenizer(), None, RejectionConfig(**options), REWARDS)  # type: ignore[arg-type]


def online_dpo(**options: Any) -> OnlineDpoObjective:
    config = OnlineDpoConfig(**options)
    return OnlineDpoObjective(_Tokenizer(), None, config, REWARDS, [Sigmoid(SigmoidConfig())])  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------------- which ones


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, [[13], [20]]),
        ({"keep": 2}, [[13], [12], [20]]),
        ({"keep": 4, "least": 0.02}, [[13], [12], [20]]),
        ({"keep": 4}, [[13], [12], [12, 5], [20]]),
        ({"truncated": "mask"}, [[12], [20]]),
        ({"least": 0.05}, [[20]]),
        ({"least": 0.2}, []),
    ],
)
def test_the_best_answers_of_each_group_are_kept(options: dict[str, Any], kept: list[list[int]]) -> None:
    """The first written of equals; one without a score is never kept, and one that is cut only where that counts as its score."""
    low, cut = answer(0, 0.02, [12]), answer(0, 0.03, [13], "length")
    first = [low, cut, answer(0, None), answer(0, 0.01, [12, 5])]
    groups = [*first, answer(1, None), answer(1, 0.1), *[answer(1, None)] * 2, *[answer(2, None)] * 4]
    samples, figures = rejection(group=4, **options).learn(groups)
    assert [list(sample.ids)[1:] for sample in samples] == kept
    assert all(list(sample.trained) == [False] + [True] * (len(sample.ids) - 1) for sample in samples)
    assert figures["answers_kept"] == len(kept) / 12
    assert figures["groups_empty"] == pytest.approx(1 - len({sample.row_id for sample in samples}) / 3)
    rewards = [each["rewards"]["one"] for each in groups if each["ids"] in kept and each["rewards"]["one"] is not None]
    assert figures["kept_reward"] == pytest.approx(sum(rewards) / max(len(rewards), 1))
    assert (figures["answers_unscored"], figures["answers_cut"]) == (8 / 12, 1 / 12)


def test_figures_are_those_of_all_answers_whatever_is_kept() -> None:
    records = [answer(0, 1.0, [5, 6]), answer(0, 3.0, [7]), answer(1, 2.0, [8]), answer(1, 2.0, [9, 9, 9])]
    for objective in (rejection(group=2), online_dpo(group=2)):
        found = objective.learn([{**each, "reference": [0.0] * len(each["ids"])} for each in records])[1]
        assert (found["reward"], found["reward_one"], found["groups_alike"]) == (2.0, 2.0, 0.5)
        assert (found["answer_tokens"], found["answer_tokens_most"]) == (1.75, 3.0)
        assert {name for name in found if name.startswith("reward")} == {"reward", "reward_one"}


def test_one_answer_to_a_prompt_is_kept_where_it_is_good_enough() -> None:
    samples, figures = rejection(group=1, least=0.5).learn([answer(0, 0.6), answer(1, 0.4), answer(2, None)])
    assert [sample.row_id for sample in samples] == ["row 0"]
    assert "groups_alike" not in figures, "there is nothing to be like"


def test_more_cannot_be_kept_than_is_written() -> None:
    with pytest.raises(ValidationError, match="keep=5 of group=4 answers to a prompt; keep 4 or fewer"):
        RejectionConfig(keep=5, group=4)
    with pytest.raises(ValidationError, match="greater than or equal to 2"):
        OnlineDpoConfig(group=1)


def test_the_best_and_the_worst_of_a_group_are_a_pair() -> None:
    """No pair are answers that are all as good, the same answer twice, and one that has no other beside it."""
    middle = [answer(0, 0.5, [2], reference=[-1.0]), answer(0, None, [3]), answer(0, 0.9, [], reference=[])]
    best = answer(0, 0.9, [5, 6], reference=[-3.0, -4.0])
    worst = answer(0, 0.1, [7, 8, 9], reference=[-5.0, -6.0, -7.0])
    records = [*middle, best, worst, answer(0, 0.9, [10]), answer(0, 0.1, [11])]
    records += [answer(1, 0.5, [number]) for number in range(7)]
    records += [answer(2, number / 8, [2]) for number in range(7)]
    records += [answer(3, None if number else 0.5, [number]) for number in range(7)]
    [sample], figures = online_dpo(group=7, ld_alpha=0.5).learn(records)
    assert (list(sample.ids), list(sample.documents)) == ([1, 5, 6, 1, 7, 8, 9], [3, 4])
    assert list(sample.trained) == [False, True, True, False, True, True, True]
    assert sample.document_values == {"reference": [-7.0, -18.0], "reference_tail": [0.0, -7.0]}
    assert list(sample.token_values["place"]) == [0, 0, 1, 0, 0, 1, 2]
    assert figures["pair_gap"] == pytest.approx(0.8)
    assert figures["groups_unpaired"] == 0.75


class _OtherRank:
    """A policy on a rank where the first answer is better than the third; on rank 0 the second one is."""

    def generate(self, prompts: Sequence[Sequence[int]], config: GenerationConfig, **weights: Any) -> list[Generation]:
        return [Generation("a" * (number + 1), (5,) * (number + 1), "eos", 2) for number in range(len(prompts))]

    def once(self, function: Any) -> Any:
        found = function()
        return [1, 2] if found == [0, 2] else found

    def measure(self, samples: Sequence[Sample], measure: Any, view: str) -> list[dict[str, Any]]:
        return [{"reference": np.full(sum(sample.trained), -1.0)} for sample in samples]


def test_the_reference_reads_the_pairs_of_rank_0_where_a_rank_has_others() -> None:
    """Ranks that measure other answers than the others would wait for them, or mix them up."""
    prompts = [Prompt({"id": "row 0", "prompt": "a"}, [1])]
    records = online_dpo(group=3).collect(prompts, _OtherRank(), seed=0, previous=())  # type: ignore[arg-type]
    assert [record.get("reference") for record in records] == [None, [-1.0] * 3, [-1.0] * 4]


def test_answers_of_another_objective_have_no_reference_to_compare_with() -> None:
    with pytest.raises(UsageError, match="row 0 was written down without log-probabilities of the model of step 0"):
        online_dpo().learn([answer(0, 0.5), answer(0, 0.4)])


def test_the_first_loss_is_known_where_the_first_iteration_has_a_pair() -> None:
    pair = [answer(0, 0.5, reference=[-1.0]), answer(0, 0.4, reference=[-1.0])]
    alike = [pair[0]] * 2
    with_pairs, without = online_dpo(), online_dpo()
    for records in (pair, alike):
        with_pairs.learn(records)
    without.learn(alike)
    assert (with_pairs.first_loss, without.first_loss) == (pytest.approx(math.log(2)), None)


# --------------------------------------------------------------------------------------------------------- beside a file


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that writes short words and ends."""
    folder = tmp_path_factory.mktemp("base")
    rows = [{"prompt": prompt, "response": word} for prompt in PROMPTS for word in WRITTEN]
    write(folder / "words.jsonl", rows)
    words = f"{SIZES} --objective sft --dataset jsonl --dataset.path {folder}/words.jsonl --data.eval none --data.cache none"
    words += f" --optimizer.lr 1e-2 --train.steps 60 --train.micro-batch-size 16 --output {folder}/run"
    assert main(words.split()) == 0
    assert mt_convert([f"{folder}/run", f"{folder}/model"]) == 0
    return folder / "model"


def write(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


class Trainer:
    """``mt-train`` of the base for three steps."""

    def __init__(self, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._usual = f"--model llama --model.weights {base} --data.eval none --data.cache none --optimizer.lr 1e-3 --train.steps 3"
        self._capsys, self._runs = capsys, 0

    def __call__(self, words: str) -> list[dict[str, Any]]:
        """Return the records of a run, ``run-0`` for the first."""
        code, said = self.run(words)
        assert code == 0, said
        return read(Path(f"run-{self._runs - 1}/metrics.jsonl"))

    def run(self, words: str) -> tuple[int, str]:
        """Return the exit code, and all that was printed."""
        code = main(f"{self._usual} {words} --output run-{self._runs}".split())
        self._runs += 1
        written = self._capsys.readouterr()
        return code, " ".join((written.out + written.err).split())


@pytest.fixture
def train(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Trainer:
    monkeypatch.chdir(tmp_path)
    write(Path("prompts.jsonl"), [{"prompt": prompt} for prompt in PROMPTS])
    Path("mine.py").write_text(REWARD)
    return Trainer(base, capsys)


PROMPTED = "--dataset jsonl --dataset.path prompts.jsonl --objective.prompts 8 --objective.passes 3 --objective.max-new-tokens 8"
ASKED = f"{PROMPTED} --rewards python --rewards.python.path mine.py"
"""One iteration, whose answers are learned from three times."""


IN_ONE_STEP = "--train.global-batch-size 64"
"""All rows of a file."""
PACKED = "--data.batching packing --train.sequence-len 96"


def answers() -> list[list[dict[str, Any]]]:
    """The answers of the first run by groups, the best first, with the text of their prompt. Texts and tokens are the same."""
    found = [each for each in read(Path("run-0/rollouts.jsonl")) if each["rewards"]["python"] is not None]
    assert all(bytes(each["ids"][:-1]).decode("ascii") == each["text"] for each in found)
    found = [{**each, "prompt": bytes(each["prompt"][1:]).decode()} for each in found]
    groups = [[each for each in found if each["group"] == group] for group in range(len(PROMPTS))]
    return [sorted(group, key=lambda each: -each["rewards"]["python"]) for group in groups]


def assert_alike(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    assert [each["step"] for each in ours] == [each["step"] for each in theirs] == [1, 2, 3]
    assert theirs[0]["loss"] != theirs[2]["loss"]
    for mine, other in zip(ours, theirs, strict=True):
        for name, share in AS_IN_A_FILE.items():
            assert mine[name] == pytest.approx(other[name], rel=share), (mine["step"], name)


@pytest.mark.parametrize("more", ["", PACKED])
def test_answers_that_are_kept_are_learned_as_sft_learns_them(train: Trainer, more: str) -> None:
    ours = train(f"--objective rejection --objective.group 6 --objective.keep 2 {ASKED} {more}")
    kept = [each for group in answers() for each in group[:2]]
    write(Path("rows.jsonl"), [{"prompt": each["prompt"], "response": each["text"]} for each in kept])
    theirs = train(f"--objective sft --dataset jsonl --dataset.path rows.jsonl {IN_ONE_STEP} {more}")
    assert_alike(ours, theirs)
    assert ours[0]["answers_kept"] == len(kept) / 48


OF_PAIRS = {
    "sigmoid": "",
    "packed": PACKED,
    "ipo and tails": "--objective.loss ipo --objective.ld-alpha 0.5 --objective.beta 0.3",
    "likelihood of prompts, too": "--objective.sft 0.5 --objective.nll-on all --objective.sft-mean tokens --objective.wpo true",
    "simpo": "--objective.loss simpo",
    "orpo": "--objective.loss orpo --objective.nll-on all",
}


@pytest.mark.parametrize("how", OF_PAIRS)
def test_pairs_are_learned_as_dpo_learns_them(train: Trainer, how: str) -> None:
    """Losses, norms and figures of three steps; the first loss is log 2 where model and reference are one."""
    ours = train(f"--objective online-dpo --objective.group 6 {ASKED} {OF_PAIRS[how]}")
    rows = []
    for group in answers():
        scores = [each["rewards"]["python"] for each in group]
        if len(set(scores)) > 1:
            best, worst = group[0], group[scores.index(min(scores))]
            rows.append({"prompt": best["prompt"], "chosen": best["text"], "rejected": worst["text"]})
    assert len(rows) > 3
    assert ours[0]["groups_unpaired"] == 1 - len(rows) / len(PROMPTS)
    write(Path("rows.jsonl"), rows)
    theirs = train(f"--objective dpo --dataset jsonl --dataset.path rows.jsonl {IN_ONE_STEP} {OF_PAIRS[how]}")
    assert_alike(ours, theirs)
    if how in ("sigmoid", "packed"):
        assert ours[0]["loss"] == pytest.approx(math.log(2), abs=1e-6)
    for mine, other in zip(ours, theirs, strict=True):
        for name in ("reward_margin", "reward_chosen", "logp_chosen", "logp_rejected"):
            found = mine[f"implicit_{name}" if name.startswith("reward") else name]
            assert found == pytest.approx(other[name], abs=1e-5), name
    assert {name for name in ours[0] if name.startswith("reward")} == {"reward", "reward_python"}


# ------------------------------------------------------------------------------------------------------------- as a user


@pytest.mark.parametrize("name", ["rejection", "online-dpo"])
def test_answers_are_chosen_by_rewards_which_have_to_be_named(train: Trainer, name: str) -> None:
    code, said = train.run(f"--objective {name} {PROMPTED}")
    assert code == 2
    assert f"{name} chooses answers by rewards: name one or more with --rewards NAME" in said


def test_an_answer_has_to_fit_into_a_row_and_a_pair_with_its_prompt_twice(train: Trainer) -> None:
    """Four tokens of a prompt, and eight of an answer."""
    code, said = train.run(f"--objective online-dpo {ASKED} --train.sequence-len 23")
    assert code == 2
    assert "23 tokens, and 2 times the longest prompt with the longest answer to it has 24. Set 24 or more" in said
    for name, length in (("online-dpo", 24), ("rejection", 12)):
        train(f"--objective {name} {ASKED} --data.batching packing --train.sequence-len {length}")


def test_answers_of_another_method_are_learned_from_again(train: Trainer) -> None:
    """Those of GRPO have all that is needed where nothing is compared with a reference."""
    train(f"--objective grpo --objective.group 6 {ASKED}")
    written = read(Path("run-0/rollouts.jsonl"))
    compact = "".join(
        json.dumps(each, separators=(",", ":")) + "\n" for each in written
    )  # as other programs write JSON
    Path("run-0/rollouts.jsonl").write_text(compact)
    for name in ("rejection", "online-dpo --objective.loss simpo"):
        new, again = (
            train(f"--objective {name} --objective.group 6 {ASKED} {more}") for more in ("", "--objective.replay run-0")
        )
        assert [each["loss"] for each in again] == [each["loss"] for each in new]
    for number in (1, 2, 3, 4):
        assert [each["ids"] for each in read(Path(f"run-{number}/rollouts.jsonl"))] == [each["ids"] for each in written]
    code, said = train.run(f"--objective online-dpo --objective.group 6 {ASKED} --objective.replay run-0")
    assert code == 2
    assert "was written down without log-probabilities of the model of step 0, which this loss compares with" in said


def test_a_reference_that_is_not_the_model_of_step_0_ends_the_run_at_its_first_step(train: Trainer) -> None:
    train(f"--objective online-dpo {ASKED}")
    lines = read(Path("run-0/rollouts.jsonl"))
    write(Path("run-0/rollouts.jsonl"), [{**each, "reference": [0.0] * len(each["ids"])} for each in lines])
    code, said = train.run(f"--objective online-dpo {ASKED} --objective.replay run-0")
    assert code == 2
    assert "and has to be 0.693147: the model has not been trained yet" in said


@pytest.mark.parametrize("more", ["", "--objective.sft 0.5 --objective.ld-alpha 0.5"])
def test_answers_that_are_all_as_good_are_no_pairs_and_end_no_run(train: Trainer, more: str) -> None:
    """The first loss is 0 then, and is not taken for one that has to be log 2."""
    Path("mine.py").write_text("def score(answers):\n    return [1.0 for each in answers]\n")
    records = train(f"--objective online-dpo {more} {ASKED}")
    assert [(each["loss"], each["grad_norm"]) for each in records] == [(0.0, 0.0)] * 3
    assert {(each["groups_alike"], each["groups_unpaired"], each["reward"]) for each in records} == {(1.0, 1.0, 1.0)}


@pytest.mark.long
@pytest.mark.parametrize("name", ["rejection", "online-dpo --objective.group 8"])
def test_the_smallest_model_learns_to_write_a_letter(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with GRPO it writes hardly anything else after 45 steps: with the defaults, but for shorter answers and a rate of 3e-3."""
    monkeypatch.chdir(tmp_path)
    write(Path("prompts.jsonl"), [{"prompt": f"{n}: "} for n in range(12)])
    words = (
        f"--model llama --objective {name} --dataset jsonl --dataset.path prompts.jsonl --data.eval none --output run"
    )
    words += " --rewards pattern --rewards.pattern.pattern e --rewards.pattern.count true --objective.max-new-tokens 16"
    assert main(f"{words} --optimizer.lr 3e-3 --train.steps 45".split()) == 0
    rewards = [each["reward"] for each in read(Path("run/metrics.jsonl"))]
    assert sum(rewards[:5]) / 5 < 0.1
    assert sum(rewards[-5:]) / 5 > 0.6
