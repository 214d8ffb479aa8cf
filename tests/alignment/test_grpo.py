"""Rewards of answers, rows with prompts, and training with them as a user does."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from mt_core import DataError, conversation
from mt_plugin_alignment import Answer
from mt_plugin_alignment.objectives.shapes import read_prompt
from mt_plugin_alignment.reward_functions.texts import (
    Exact,
    ExactConfig,
    Length,
    LengthConfig,
    Pattern,
    PatternConfig,
    read_number,
)
from mt_tools.cli.data import main as mt_data
from mt_tools.cli.eval import main as mt_eval
from mt_train.cli.train import main

# --------------------------------------------------------------------------------------------------------------- rewards


def answer(text: str, **row: Any) -> Answer:
    return Answer(text, [1] * len(text), "eos", {"id": "row 1", **row}, 0)


def test_rewards_look_at_texts() -> None:
    has = Pattern(PatternConfig(pattern="[0-9]+"))
    assert has.score([answer("a 12"), answer("none")]) == [1.0, 0.0]
    covers = Pattern(PatternConfig(pattern="[0-9]+", count=True))
    assert covers.score([answer("a 12"), answer("")]) == [0.5, 0.0]
    whole = Pattern(PatternConfig(pattern="<a>.*</a>", whole=True))
    assert whole.score([answer("<a>\n</a>"), answer("<a></a>.")]) == [1.0, 0.0]
    exact = Exact(ExactConfig(pattern=r"is (\w+)", ignore="case"))
    told = [answer("is 3, is Four", answer="four"), answer("is 3", answer=4), answer("four")]
    assert exact.score(told) == [1.0, 0.0, None]
    overlong = Length(LengthConfig(most=4, ramp=4))
    assert overlong.score([answer("abcd"), answer("abcdef"), answer("a" * 40)]) == [0.0, -0.5, -1.0]


@pytest.mark.parametrize("value", [["0-9"], 4, None, {2: None}])
def test_a_pattern_that_yaml_reads_as_something_else_is_told_how_to_quote_it(value: Any) -> None:
    with pytest.raises(ValidationError, match="put quotes inside those of the shell"):
        PatternConfig(pattern=value)


def test_a_field_that_no_row_has_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    exact = Exact(ExactConfig())
    for _ in range(2):
        assert exact.score([answer("4", prompt="2 + 2", response="#### 4")] * 2) == [None, None]
    said = capsys.readouterr().err
    assert said.count("no row of these 2 answers has a field 'answer'") == 1, said
    assert "fields found: 'prompt', 'response'. Name the right one: --rewards.exact.field NAME" in said


@pytest.mark.parametrize("given", [1, "B", "b"])
def test_the_answer_to_a_prompt_with_choices_is_its_letter(given: Any) -> None:
    """As ``sft`` learns it, and as published sets have it: their ``answer`` is a number."""
    asked = {"prompt": "q", "choices": ["x", "y"], "answer": given}
    written = {**asked, "prompt": "q\nA. x\nB. y\nAnswer:", "response": " B"}
    exact = Exact(ExactConfig())
    reasoned = {**asked, "response": "There are two, and it is the second. B"}
    for row in (asked, written, reasoned):
        assert exact.score([answer(text, **row) for text in (" B", "A", "1")]) == [1.0, 0.0, 0.0]
    own = {"messages": [{"role": "user", "content": "x or y? Say 0 or 1."}], "choices": ["x", "y"], "answer": 1}
    assert exact.score([answer(text, **own) for text in ("B", "1")]) == [0.0, 1.0]


def test_a_match_that_leaves_the_group_out_is_no_text() -> None:
    exact = Exact(ExactConfig(pattern=r"Answer: (\d+)|I do not know"))
    told = [answer(text, answer="3") for text in ("I do not know", "Answer: 3", "Answer: 3? I do not know")]
    assert exact.score(told) == [0.0, 1.0, 0.0]


NUMBERS = [
    ("so 3.50", "3.5", 1.0),
    ("1,000 apples", 1000.0, 1.0),
    ("the answer is .5", "0.5", 1.0),
    (".5", "5", 0.0),
    ("x = \u22125", "5", 0.0),
    ("x = \u22125", "-5", 1.0),
    ("it lost -$5", -5, 1.0),
    ("9-2", "2", 1.0),
    ("pages 10-12", "12", 1.0),
    ("1 apple #### 7 apples, not 8", "so 7 #### 7", 1.0),
    ("\u0665", "5", 0.0),
    ("no, none", "5", 0.0),
]


@pytest.mark.parametrize(("text", "wanted", "score"), NUMBERS)
def test_numbers_are_compared_as_decimals(text: str, wanted: Any, score: float) -> None:
    assert Exact(ExactConfig(compare="number")).score([answer(text, answer=wanted)]) == [score]


@pytest.mark.parametrize(
    ("text", "wanted", "score"),
    [("0.00001", 1e-5, 1.0), ("5", 1e-5, 0.0), ("it is 10,000,000,000,000,000", 1e16, 1.0), ("3", float("nan"), None)],
)
def test_a_number_of_the_row_is_that_number_however_python_writes_it(
    text: str, wanted: float, score: float | None
) -> None:
    """``1e-05`` is no 5."""
    assert Exact(ExactConfig(compare="number")).score([answer(text, answer=wanted)]) == [score]


@pytest.mark.parametrize(
    ("compare", "text", "wanted", "score"),
    [
        ("text", "NYC", ["New York", "NYC"], 1.0),
        ("text", "['NYC']", ["NYC"], 0.0),
        ("text", "Rome", ["New York", "NYC"], 0.0),
        ("text", "Rome", [], None),
        ("number", "it is 0.5", ["1/3", 0.5], 1.0),
        ("number", "it is 4", [3, "0.5"], 0.0),
        ("number", "it is 4", ["none"], None),
    ],
)
def test_each_answer_of_a_list_is_right(compare: Any, text: str, wanted: list[Any], score: float | None) -> None:
    assert Exact(ExactConfig(compare=compare)).score([answer(text, answer=wanted)]) == [score]


@pytest.mark.parametrize(("text", "wanted", "score"), NUMBERS)
def test_the_reward_of_numbers_is_the_metric_of_evaluations(text: str, wanted: Any, score: float) -> None:
    metric = pytest.importorskip(
        "mt_plugin_evals.metrics.number"
    )  # plugins do not import each other: both have the pattern
    assert metric.Number(None).score(text, [str(wanted)], {"id": "row 1"})["number"] == score
    assert [metric.read_number(each) for each in (text, str(wanted))] == [read_number(text), read_number(str(wanted))]


@pytest.mark.parametrize("config", [PatternConfig, ExactConfig])
def test_what_is_no_regular_expression_is_refused_as_an_option(config: Callable[..., Any]) -> None:
    with pytest.raises(ValidationError, match=r"'\(' is no regular expression: missing \)"):
        config(pattern="(")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "Go"}, ["Go"]),
        ({"prompt": "Go", "response": "no"}, ["Go"]),
        ({"instruction": "Go", "input": "there"}, ["Go\nthere"]),
        ({"messages": [{"role": "user", "content": "Go"}]}, ["Go"]),
        ({"messages": [{"role": "user", "content": "Go"}, {"role": "assistant", "content": "no"}]}, ["Go"]),
    ],
)
def test_a_row_is_a_prompt_whatever_answer_it_has(row: Mapping[str, Any], said: list[str]) -> None:
    assert [turn["content"] for turn in read_prompt({"id": "rows:1", **row})] == said


@pytest.mark.parametrize("more", [{}, {"system": "Be brief."}, {"history": [["Hi", "Hello"]]}])
def test_a_prompt_with_choices_has_them_as_sft_writes_them(more: Mapping[str, Any]) -> None:
    row = {"id": "rows:1", "prompt": "Which is red?", "choices": ["rose", "sky"], **more}
    asked = read_prompt({**row, "answer": "A"})
    assert asked == conversation({**row, "answer": "A"})[:-1]
    assert asked[-1]["content"] == "Which is red?\nA. rose\nB. sky\nAnswer:"
    assert read_prompt(row) == asked, "rewards may need no answer"
    written = {**row, "prompt": "Which is red? A. rose B. sky", "response": "A", "answer": "A"}
    assert read_prompt(written) == conversation(written)[:-1], "it is written out already"
    with pytest.raises(DataError, match="rows:1: field 'answer' is 'C'; it is a letter from A to B"):
        read_prompt({**row, "answer": "C"})


def test_a_row_without_a_prompt_is_refused_by_its_place() -> None:
    with pytest.raises(DataError, match="rows:1: no prompt; fields found: 'question'"):
        read_prompt({"id": "rows:1", "question": "Go"})


# ------------------------------------------------------------------------------------------------------------- as a user

Train = Callable[..., tuple[int, str]]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Train:
    """``mt-train`` on prompts: the exit code, and all that was printed."""
    monkeypatch.chdir(tmp_path)
    Path("prompts.jsonl").write_text("".join(json.dumps({"prompt": f"{n}: "}) + "\n" for n in range(12)))
    sizes = ["--model.dim", "16", "--model.n-layers", "1", "--model.n-heads", "2", "--model.n-kv-heads", "2"]
    usual = {
        "--objective.prompts": "2",
        "--objective.group": "2",
        "--objective.max-new-tokens": "4",
        "--train.steps": "2",
        "--output": "run",
        "--objective": "grpo",
        "--data.eval": "none",
    }
    given = ["--model", "llama", "--dataset", "jsonl", "--dataset.path", "prompts.jsonl"]

    def run(*words: str) -> tuple[int, str]:
        unsaid = [word for option, value in usual.items() if option not in words for word in (option, value)]
        code = main([*given, *sizes, *unsaid, *words])
        written = capsys.readouterr()
        return code, " ".join((written.out + written.err).split())

    return run


def test_a_reward_of_ones_own_is_a_function_in_a_file(train: Train) -> None:
    Path("mine.py").write_text("def score(answers):\n    return [float(len(each.text)) for each in answers]\n")
    code, said = train("--rewards", "python", "--rewards.python.path", "mine.py")
    assert code == 0, said
    lines = list(map(json.loads, Path("run/rollouts.jsonl").read_text().splitlines()))
    assert len(lines) == 2 * 4
    assert all(each["rewards"]["python"] == len(each["text"]) for each in lines)
    assert {each["step"] for each in lines} == {1, 2}


def test_without_a_reward_and_on_a_layout_without_texts_nothing_begins(train: Train) -> None:
    code, said = train()
    assert code != 0
    assert "grpo learns from rewards: name one or more with --rewards NAME" in said
    assert not Path("run/rollouts.jsonl").exists()


def test_a_fault_in_the_objective_says_nothing_of_the_rewards_that_it_takes(train: Train) -> None:
    code, said = train("--rewards", "pattern", "--rewards.pattern.pattern", "e", "--objective.clip-low", "7")
    assert code == 2
    assert "objective.clip-low: should be less than or equal to 1, got 7" in said
    assert "is named, and no component" not in said


def test_a_reward_that_fails_ends_the_run_by_its_name(train: Train) -> None:
    Path("mine.py").write_text("def score(answers):\n    return [None for each in answers][1:]\n")
    code, said = train("--rewards", "python", "--rewards.python.path", "mine.py")
    assert code == 2
    assert "reward python gives 3 scores for 4 answers" in said


@pytest.mark.parametrize("objective", ["grpo", "ppo", "rejection", "online-dpo"])
def test_bounds_of_rewards_are_options_of_each_objective_that_has_rewards(train: Train, objective: str) -> None:
    words = ["--objective", objective, "--rewards", "python", "--rewards.python.path", "mine.py", "--train.steps", "1"]
    Path("mine.py").write_text("import time\ndef score(answers):\n    time.sleep(60)\n")
    code, said = train(*words, "--objective.score-timeout", "0.3")
    assert code == 2
    assert "reward python has given no scores for 4 answers in 0.3 seconds" in said
    Path("mine.py").write_text("def score(answers):\n    return [1.0, float('nan'), 2.0, 3.0]\n")
    code, said = train(*words, "--objective.on-bad-score", "skip", "--overwrite")
    assert code == 0, said
    assert "reward python: 1 of 4 answers count as unscored (first: nan for an answer to prompts.jsonl:" in said
    code, said = train(*words, "--objective.on-bad-score", "skip", "--objective.max-bad-scores", "0", "--overwrite")
    assert code == 2, said
    assert "--objective.max-bad-scores is 0" in said


def test_answers_that_nobody_can_score_are_counted_and_change_nothing(train: Train) -> None:
    Path("mine.py").write_text("def score(answers):\n    return [None for each in answers]\n")
    code, said = train("--rewards", "python", "--rewards.python.path", "mine.py")
    assert code == 0, said
    last = json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])
    assert (last["answers_unscored"], last["reward"], last["grad_norm"]) == (1.0, 0.0, 0.0)


def test_prompts_are_inspected_and_have_no_loss_to_evaluate(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--rewards", "pattern", "--rewards.pattern.pattern", "e"]
    code, said = train(*words)
    assert code == 0, said
    assert "trained on, less than" not in said
    rows = ["--dataset", "jsonl", "--dataset.path", "prompts.jsonl", "--data.eval", "none"]
    assert mt_data(["inspect", "--model", "llama", "--objective", "grpo", *words, *rows]) == 0
    assert mt_eval(["--run", "run", "--on", "rows=jsonl:prompts.jsonl"]) == 2
    assert "rows of this objective are prompts, which have no loss" in capsys.readouterr().err


def test_a_prompt_and_its_answer_have_to_fit_into_a_row(train: Train) -> None:
    words = ["--rewards", "pattern", "--rewards.pattern.pattern", "e", "--objective.max-new-tokens", "40"]
    code, said = train(*words, "--train.sequence-len", "44")
    assert code == 2
    assert "train.sequence-len: 44 tokens, and the longest prompt with the longest answer to it has 45" in said
    assert train(*words, "--train.sequence-len", "45", "--data.batching", "packing")[0] == 0


def measured(record: Mapping[str, float]) -> dict[str, float]:
    """Figures without what clocks say."""
    return {k: v for k, v in record.items() if not k.endswith(("seconds", "per_second")) and k != "memory_gib"}


def test_recorded_answers_are_learned_from_again(train: Train) -> None:
    """The same rows, steps and losses, with no reward asked; another run may take other steps of them, but no more than there are."""
    Path("mine.py").write_text("def score(answers):\n    return [float(len(each.text)) for each in answers]\n")
    assert train("--rewards", "python", "--rewards.python.path", "mine.py")[0] == 0
    Path("mine.py").write_text("def score(answers):\n    raise RuntimeError('nobody asks')\n")
    again = ["--rewards", "python", "--rewards.python.path", "mine.py", "--objective.replay", "run"]
    code, said = train(*again, "--output", "second")
    assert code == 0, said
    first, second = (
        [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()] for run in ("run", "second")
    )
    for one, other in zip(first, second, strict=True):
        assert measured(other) == measured(one)
    assert [each["epoch"] for each in first] == pytest.approx([first[0]["epoch"] * (1 + n) for n in range(len(first))])
    assert Path("run/rollouts.jsonl").read_text() == Path("second/rollouts.jsonl").read_text()
    code, said = train(*again, "--output", "third", "--train.steps", "3")
    assert code == 2
    assert "run/rollouts.jsonl has no answers of iteration 2; train for fewer steps" in said


def test_a_run_that_is_stopped_before_an_evaluation_keeps_the_answers_it_goes_on_from(train: Train) -> None:
    """The signal comes when the answers of step 2 are scored: it is trained, and its evaluation alone is owed."""
    Path("mine.py").write_text(
        "import os, signal\ncalls = []\n\ndef score(answers):\n    calls.append(1)\n"
        "    if len(calls) == 3 and os.path.exists('stop'):\n        os.remove('stop')\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n    return [float(len(each.text)) for each in answers]\n"
    )
    asked = ["--rewards", "python", "--rewards.python.path", "mine.py", "--train.steps", "3"]
    asked += ["--eval.every-steps", "1", "--data.eval", "2"]
    assert train(*asked, "--output", "whole")[0] == 0
    Path("stop").touch()
    code, said = train(*asked)
    assert code == 75, said
    assert "after step 2 of 3" in said
    code = main(["--resume", "run"])
    assert code == 0
    for name in ("rollouts.jsonl", "samples.jsonl"):
        assert Path("run", name).read_text() == Path("whole", name).read_text()


def test_steps_are_computed_again_from_the_middle_of_an_iteration(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--replay`` has no folder of its own: answers of an iteration that has begun are those of the run."""
    Path("mine.py").write_text("def score(answers):\n    return [float(len(each.text)) for each in answers]\n")
    asked = ["--rewards", "python", "--rewards.python.path", "mine.py", "--checkpoint.every-steps", "1"]
    assert train("--objective", "ppo", *asked)[0] == 0
    assert main(["--resume", "run/checkpoints/step-00000001", "--replay", "1"]) == 0
    assert "step 2 of run was computed again: loss, grad_norm, lr, tokens are" in capsys.readouterr().out


def test_a_run_on_paper_has_the_steps_of_its_iterations_and_is_refused_as_the_run_would_be(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.py").write_text("def score(answers):\n    raise RuntimeError('nobody asks')\n")
    asked = ["--model", "llama", "--dataset", "jsonl", "--dataset.path", "prompts.jsonl", "--data.eval", "none"]
    asked += ["--objective", "ppo", "--rewards", "python", "--rewards.python.path", "mine.py", "--train.epochs", "2"]
    asked += ["--objective.prompts", "5", "--train.micro-batch-size", "2"]
    assert main([*asked, "--objective.max-new-tokens", "4", "--train.sequence-len", "32", "--dry-run"]) == 0
    each, iterations = 4, 6  # twelve prompts are three iterations, and ppo learns from each in four passes
    assert f"steps {iterations * each} optimizer steps, 2.0 epochs" in " ".join(capsys.readouterr().out.split())
    assert main([*asked, "--objective.max-new-tokens", "90", "--train.sequence-len", "32", "--dry-run"]) != 0
    assert "32 tokens, and the longest prompt with the longest answer to it has" in capsys.readouterr().err


@pytest.mark.long
def test_the_smallest_model_learns_to_write_a_letter(train: Train) -> None:
    """It writes nearly nothing else after 30 steps with the defaults, but for shorter answers and a rate of 3e-3."""
    words = ["--rewards", "pattern", "--rewards.pattern.pattern", "e", "--rewards.pattern.count", "true"]
    given = ["--model", "llama", "--objective", "grpo", "--dataset", "jsonl", "--dataset.path", "prompts.jsonl"]
    asked = ["--objective.max-new-tokens", "16", "--optimizer.lr", "3e-3", "--train.steps", "30"]
    assert main([*given, *words, *asked, "--data.eval", "none", "--output", "run"]) == 0
    rewards = [json.loads(line)["reward"] for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert sum(rewards[:5]) / 5 < 0.1
    assert sum(rewards[-5:]) / 5 > 0.6
