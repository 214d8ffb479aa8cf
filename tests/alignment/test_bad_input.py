"""Rows that cannot be learned from, through ``mt-train`` as it is called: refused by row and field, or counted by reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mt_tools.cli.eval import main as mt_eval
from mt_train.cli.train import main

GOOD = [{"prompt": f"{number} + 1 = ", "chosen": str(number + 1), "rejected": "?"} for number in range(12)]
LONG = {"prompt": "p" * 30, "chosen": "c" * 30, "rejected": "r" * 10}
LONG_ANSWER = {"prompt": "p", "chosen": "c" * 90, "rejected": "r"}
OBJECTIVES = ["dpo", "cpo", "simpo", "orpo"]
Train = Callable[..., tuple[int, str]]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Train:
    """Train on the good rows and one more; gives the exit code and all that was printed."""
    monkeypatch.chdir(tmp_path)

    def run(row: dict[str, Any], *words: str, objective: str = "dpo", good: Any = None) -> tuple[int, str]:
        rows = [*(GOOD if good is None else good), row]
        Path("rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
        given = ["--model", "llama", "--objective", objective, "--dataset", "jsonl", "--dataset.path", "rows.jsonl"]
        sizes = ["--model.dim", "16", "--model.n-layers", "1", "--model.n-heads", "2", "--model.n-kv-heads", "2"]
        more = ["--train.sequence-len", "64", "--output", "run"]
        usual = {"--train.steps": "1", "--data.eval": "none"}
        unsaid = [word for option, value in usual.items() if option not in words for word in (option, value)]
        code = main([*given, *sizes, *more, *unsaid, *words])
        written = capsys.readouterr()
        return code, " ".join((written.out + written.err).split())

    return run


def dropped() -> dict[str, int]:
    """Reason → rows, as the record of the run has them."""
    about = json.loads(Path("run/about.json").read_text())
    found: dict[str, int] = about["data"]["train"]["rows_dropped"]
    return found


DROPPED: dict[str, tuple[dict[str, Any], str]] = {
    "equal sides": ({"prompt": "q", "chosen": "a", "rejected": "a"}, "'chosen' and 'rejected' are the same"),
    "an empty chosen side": ({"prompt": "q", "chosen": "", "rejected": "a"}, "'chosen' is empty"),
    "an empty rejected side": ({"prompt": "q", "chosen": "a", "rejected": "  "}, "'rejected' is empty"),
    "equal scores": (
        {"prompt": "q", "answers": [{"text": "a", "score": 1}, {"text": "b", "score": 1}]},
        "no answer has a higher score than another",
    ),
}


@pytest.mark.parametrize("kind", DROPPED)
def test_a_row_that_prefers_nothing_is_counted_and_the_run_goes_on(train: Train, kind: str) -> None:
    row, reason = DROPPED[kind]
    code, said = train(row)
    assert code == 0, said
    assert dropped() == {reason: 1}
    assert f"1 dropped ({reason})" in said, "before the first step"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a prompt that differs": (
        {
            "chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
            "rejected": [{"role": "user", "content": "p"}, {"role": "assistant", "content": "b"}],
        },
        "rows.jsonl:13: 'chosen' and 'rejected' part at a turn of the user, so they answer different prompts",
    ),
    "no rejected side": ({"prompt": "q", "chosen": "a"}, "rows.jsonl:13: no field 'rejected'"),
    "a side that is a number": ({"prompt": "q", "chosen": "a", "rejected": 4}, "rows.jsonl:13: field 'rejected' is of type int"),
    "no prompt": ({"chosen": "a", "rejected": "b"}, "rows.jsonl:13: no prompt; fields found: 'chosen', 'rejected'"),
    "a label": ({"prompt": "q", "response": "a", "label": True}, "rows.jsonl:13: one answer with a label is no pair"),
    "a margin that is no number": (
        {"prompt": "q", "chosen": "a", "rejected": "b", "margin": "big"},
        "rows.jsonl:13: field 'margin' is 'big'; it is a number",
    ),
    "turns without a template": (
        {"messages": [{"role": "user", "content": "q"}], "chosen": "a", "rejected": "b"},
        "rows.jsonl:13: the tokenizer has no chat template",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_a_row_that_is_no_pair_ends_the_run_before_the_first_step(train: Train, kind: str) -> None:
    row, says = REFUSED[kind]
    code, said = train(row)
    assert code == 1
    assert says in said
    assert "step 1/1" not in said


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (
            {"prompt": "q", "response": "a"},
            "rows.jsonl:13: field 'label' is missing; it says whether the answer is good",
        ),
        ({"prompt": "q", "response": "a", "label": 0.5}, "rows.jsonl:13: field 'label' is 0.5"),
        ({"prompt": "q", "chosen": "a"}, "rows.jsonl:13: no field 'rejected'"),
        ({"prompt": "q", "label": True}, "rows.jsonl:13: no field 'response'"),
    ],
)
def test_a_row_without_an_answer_and_its_label_ends_a_run_of_kto(train: Train, row: dict[str, Any], says: str) -> None:
    code, said = train(row, objective="kto")
    assert code == 1
    assert says in said


def test_labelled_answers_and_pairs_are_trained_on_together_and_evaluated(train: Train) -> None:
    """The held-out rows have a baseline of their own, which mt-eval finds again."""
    words = ["--data.eval", "4", "--eval.every-steps", "1", "--train.micro-batch-size", "2", "--train.steps", "2"]
    code, said = train({"prompt": "q", "response": "a", "label": True}, *words, objective="kto")
    assert code == 0, said
    assert "loss 0.5000" in said
    last = json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])
    assert last["eval_kl"] >= 0
    assert mt_eval(["--run", "run"]) == 0
    (found,) = json.loads(Path("run/eval/001/metrics.json").read_text())["results"]
    for name in ("loss", "kl", "reward_desirable"):
        assert found[name] == pytest.approx(last[f"eval_{name}"], rel=1e-4, abs=1e-6), name


def test_a_kind_of_answer_that_neither_a_step_nor_the_held_out_rows_have_has_no_figure(train: Train) -> None:
    """A log-probability of 0 would be that of a certain answer."""
    bad = [{"prompt": f"{number} + 1 = ", "response": "?", "label": False} for number in range(12)]
    row = {"prompt": "q", "response": "a", "label": False}
    words = ["--data.eval", "4", "--eval.every-steps", "1", "--train.steps", "1"]
    code, said = train(row, *words, objective="kto", good=bad)
    assert code == 0, said
    (line,) = map(json.loads, Path("run/metrics.jsonl").read_text().splitlines())
    for prefix in ("", "eval_"):
        assert {f"{prefix}reward_undesirable", f"{prefix}logp_undesirable", f"{prefix}kl"} <= line.keys()
    assert [name for name in line if name.endswith("_desirable")] == []
    assert mt_eval(["--run", "run"]) == 0
    (found,) = json.loads(Path("run/eval/001/metrics.json").read_text())["results"]
    assert "logp_undesirable" in found
    assert "logp_desirable" not in found


def test_bad_rows_that_are_passed_over_are_counted(train: Train) -> None:
    code, said = train(REFUSED["no rejected side"][0], "--data.on-bad-row", "skip")
    assert code == 0, said
    assert dropped() == {"bad row": 1}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_of_pairs_refuses_rows_for_fine_tuning(train: Train, objective: str) -> None:
    code, said = train({"prompt": "q", "response": "a"}, objective=objective)
    assert code == 1
    assert "rows.jsonl:13: no field 'chosen'; fields found: 'prompt', 'response'" in said


@pytest.mark.parametrize("truncation", ["left", "middle", "right"])
def test_a_pair_longer_than_the_context_is_cut_and_counted(train: Train, truncation: str) -> None:
    code, said = train(LONG, "--data.truncation", truncation)
    assert code == 0, said
    assert "1 truncated" in said
    assert dropped() == {}


@pytest.mark.parametrize("truncation", ["left", "middle"])
def test_an_answer_longer_than_the_context_is_dropped_with_the_way_out(train: Train, truncation: str) -> None:
    code, said = train(LONG_ANSWER, "--data.truncation", truncation)
    assert code == 0, said
    assert dropped() == {"answers alone longer than data.max_len; --data.truncation right cuts their ends": 1}


def test_an_answer_longer_than_the_context_may_lose_its_end(train: Train) -> None:
    code, said = train(LONG_ANSWER, "--data.truncation", "right")
    assert code == 0, said
    assert "rows do not end in a stop token" in said


def test_a_pair_that_is_too_long_is_dropped_where_that_is_asked(train: Train) -> None:
    code, said = train(LONG, "--data.truncation", "drop")
    assert code == 0, said
    assert dropped() == {"longer than data.max_len": 1}


@pytest.mark.parametrize(
    ("truncation", "says"),
    [
        ("error", "rows.jsonl:13: 104 tokens exceed data.max_len=64; raise --data.max-len and --train.sequence-len"),
        ("split", "its 2 documents belong together and are not split. Use --data.truncation left, right, middle or drop"),
    ],
)  # fmt: skip
def test_a_pair_that_is_too_long_is_refused_by_its_row(train: Train, truncation: str, says: str) -> None:
    code, said = train(LONG, "--data.truncation", truncation)
    assert code == 1
    assert says in said


def test_nothing_left_of_all_rows_is_said(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.GOOD", [])
    code, said = train(DROPPED["equal sides"][0])
    assert code == 1
    assert "'chosen' and 'rejected' are the same" in said


@pytest.mark.parametrize(("loss", "says"), [("[]", "loss is an empty list"), ("{name: null}", "has no name")])
def test_a_run_without_a_loss_is_refused(train: Train, loss: str, says: str) -> None:
    code, said = train(GOOD[0], "--objective.loss", loss)
    assert (code, says in said) == (2, True), said
