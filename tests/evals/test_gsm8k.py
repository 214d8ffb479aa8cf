"""``gsm8k`` asks and scores as lm-evaluation-harness does, and counts what did not fit."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))

from harness_worlds import write_llama
from plain_subject import PlainSubject, ScriptedSubject

from mt_core import DataError, UsageError
from mt_core.evaluation import Findings
from mt_plugin_evals.generated.config import Gsm8kConfig
from mt_plugin_evals.generated.gsm8k import Gsm8k
from mt_plugin_evals.harness.config import HarnessConfig
from mt_plugin_evals.harness.evaluation import Harness
from mt_train import load_adapters


class Rows:
    """Rows of a dataset."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, index: int) -> dict[str, Any]:
        return {"id": f"rows.jsonl:{index + 1}", **self._rows[index]}


SUMS = [
    {"question": f"{a} and {b}?", "answer": f"{a}+{b}=<<{a}+{b}={a + b}>>{a + b}\n#### {a + b}"}
    for a, b in ((2, 3), (900, 334), (5, 24))
]
TRAIN = [{"question": f"{a} less 1?", "answer": f"It is {a - 1}.\n#### {a - 1}"} for a in range(2, 14)]


def run(
    subject: Any, *, examples: list[dict[str, Any]] | None = TRAIN, rows: list[dict[str, Any]] = SUMS, **options: Any
) -> Findings:
    config = Gsm8kConfig(rows={"name": "x"}, **options)
    return Gsm8k(config, Rows(rows), None if examples is None else Rows(examples)).run(subject)


def by_harness(subject: Any, folder: Path, **options: Any) -> Findings:
    """lm_eval's own task file over local rows."""
    import lm_eval.tasks

    task = yaml.safe_load((Path(lm_eval.tasks.__file__).parent / "gsm8k" / "gsm8k.yaml").read_text())
    for name, rows in (("train", TRAIN), ("test", SUMS)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    files = {name: str(folder / f"{name}.jsonl") for name in ("train", "test")}
    del task["dataset_name"], task["tag"]
    task |= {"task": "sums", "dataset_path": "json", "dataset_kwargs": {"data_files": files}}
    (folder / "sums.yaml").write_text(yaml.safe_dump(task))
    return Harness(HarnessConfig(tasks=("sums",), include=str(folder), **options)).run(subject)


def answer(prompt: str, number: int) -> str:
    return [" 5\n#### 5\nQuestion: next #### 8", " so $1,234.00.", " none, and , ."][number]


@pytest.mark.parametrize("shots", [0, 5])
def test_prompts_and_figures_equal_lm_evals_task(shots: int, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    ours, theirs = ScriptedSubject(answer), ScriptedSubject(answer)
    found, expected = run(ours, shots=shots), by_harness(theirs, tmp_path, shots=shots)
    assert ours.prompts == theirs.prompts
    assert (ours.configs[0].stop, ours.configs[0].max_new_tokens) == (
        theirs.configs[0].stop,
        theirs.configs[0].max_new_tokens,
    )
    for ours_name, name in (("strict", "strict_match"), ("flexible", "flexible_extract")):
        assert found.figures[ours_name] == expected.figures[f"sums_exact_match_{name}"]
        assert found.figures[f"{ours_name}_stderr"] == pytest.approx(
            expected.figures[f"sums_exact_match_stderr_{name}"]
        )
    assert [found.figures[name] for name in ("strict", "flexible", "number", "unread")] == pytest.approx(
        [1 / 3, 1 / 3, 2 / 3, 1 / 3]
    )
    assert f"{shots} shots, seed 1234" in found.signatures["number"]


@pytest.mark.needs("mt-plugin-llama")
def test_conversations_equal_those_of_the_harness(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    write_llama(tmp_path / "weights")
    loaded, _ = load_adapters({}, model="llama", weights=tmp_path / "weights")
    ours, theirs = PlainSubject(loaded), PlainSubject(loaded)
    found = run(ours, shots=2, chat=True, max_new_tokens=8)
    task = tmp_path / "tasks"
    task.mkdir()
    by_harness(theirs, task, shots=2, chat=True)
    assert len(ours.prompts) == 3
    assert [list(prompt)[-40:] for prompt in ours.prompts] == [list(prompt)[-40:] for prompt in theirs.prompts]
    assert found.figures["unfinished"] == 1


def test_shots_come_from_the_other_questions_where_there_are_no_examples() -> None:
    subject = ScriptedSubject(lambda prompt, number: "#### 1")
    run(subject, examples=None, shots=2)
    for row, prompt in zip(SUMS, subject.prompts, strict=True):
        assert prompt.count("Question:") == 3
        assert prompt.count(row["question"]) == 1
        assert prompt.endswith(f"Question: {row['question']}\nAnswer:")


def test_shots_that_do_not_fit_are_dropped_from_the_front_and_counted_and_the_question_never() -> None:
    subject = ScriptedSubject(lambda prompt, number: "#### 5", max_seq_len=120)
    found = run(subject, shots=3, max_new_tokens=20)
    kept = [row["shots"] for row in found.rows]
    assert all(0 < count < 3 for count in kept)
    assert found.notes == [
        f"{9 - sum(kept)} shots did not fit into the model's context beside their question and were left out"
    ]
    assert all(
        prompt.endswith(f"Question: {row['question']}\nAnswer:")
        for row, prompt in zip(SUMS, subject.prompts, strict=True)
    )


def test_a_question_that_fills_the_context_is_counted_and_not_asked() -> None:
    rows = [*SUMS, {"question": "long " * 60, "answer": "#### 5"}]
    subject = ScriptedSubject(lambda prompt, number: "#### 5", max_seq_len=120)
    found = run(subject, rows=rows, shots=0, max_new_tokens=20)
    assert len(subject.prompts) == 3
    assert list(found.rows)[3]["finish"] == "too_long"
    assert (found.figures["number"], found.figures["unread"], found.figures["unfinished"]) == (1 / 4, 1 / 4, 1 / 4)
    assert found.notes == ["1 prompts fill the model's context (120 tokens) and count as empty answers"]


def test_the_first_questions_have_the_shots_that_they_have_among_all() -> None:
    some, every = ScriptedSubject(answer), ScriptedSubject(answer)
    run(some, limit=2), run(every)
    assert some.prompts == every.prompts[:2]


@pytest.mark.parametrize(
    ("rows", "options", "error", "message"),
    [
        ([], {}, DataError, "the dataset of the evaluation has no rows"),
        ([{"question": "1?"}], {}, DataError, r"rows.jsonl:1: a row of GSM8K has .*fields found: 'question'"),
        (
            [{"question": "1?", "answer": "none"}],
            {"shots": 0},
            DataError,
            r"rows.jsonl:1: the reference 'none' has no number",
        ),
        (SUMS, {"shots": 13}, DataError, r"13 shots are wanted, and there are 12 other rows"),
    ],
)
def test_faults_are_one_clear_message(
    rows: list[dict[str, Any]], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run(ScriptedSubject(lambda prompt, number: ""), rows=rows, **options)
    built = Gsm8k(Gsm8kConfig(rows={"name": "x"}, **options), Rows(rows), Rows(TRAIN))
    with pytest.raises(error, match=message):
        built.check(ScriptedSubject(lambda prompt, number: ""))


def test_a_layout_that_cannot_write_is_refused() -> None:
    subject = ScriptedSubject(answer)
    subject.texts = False
    with pytest.raises(UsageError, match="gsm8k lets the model write, which it cannot on this layout"):
        run(subject)
