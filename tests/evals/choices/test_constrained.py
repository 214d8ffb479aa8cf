"""Answers under a trie of the choices, beside the likeliest by score."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from llama_subject import FILES, LlamaSubject, open_evaluation, write_llama
from scripted_subject import ScriptedSubject

from mt_core import ComponentError, UsageError

MMLU = {"name": "mmlu", "path": str(FILES / "mmlu/test")}


def test_where_choices_are_single_tokens_both_agree(tmp_path: Path) -> None:
    subject = LlamaSubject(write_llama(tmp_path, begins=True, vocab=500))
    assert [len(subject.tokenizer.encode(f" {letter}")) for letter in "ABCD"] == [1, 1, 1, 1]
    found = open_evaluation("constrained-choice", rows=MMLU).run(subject)
    assert found.figures["agreement"] == 1
    assert found.figures["accuracy_decoded"] == found.figures["accuracy"]
    assert found.figures["accuracy_decoded_stderr"] == found.figures["accuracy_stderr"]
    assert len({row["decoded"] for row in found.rows}) > 1


def test_scores_without_the_question_give_their_accuracy_as_in_multiple_choice(tmp_path: Path) -> None:
    subject = LlamaSubject(write_llama(tmp_path, begins=True, vocab=500))
    options = {"rows": MMLU, "unconditional": "Answer:"}
    own, plain = (
        open_evaluation(name, **options).run(subject).figures for name in ("constrained-choice", "multiple-choice")
    )
    names = ("accuracy", "accuracy_pmi", "accuracy_pmi_stderr")
    assert [own[name] for name in names[:2]] == [plain[name] for name in names[:2]]
    assert {*names} <= own.keys()


def test_the_first_token_decides_early_among_longer_choices(tmp_path: Path) -> None:
    subject = LlamaSubject(write_llama(tmp_path, begins=True))
    rows = {"name": "arc", "path": str(FILES / "ARC-Easy-Test.jsonl")}
    found = open_evaluation("constrained-choice", rows=rows).run(subject)
    for row in found.rows:
        ids = [subject.tokenizer.encode(text) for text in row["choices"]]
        prompt = [0, *subject.tokenizer.encode(row["prompt"])]
        values = subject._logprobs(prompt)[-1]
        best = max(float(values[own[0]]) for own in ids)
        assert float(values[ids[row["decoded"]][0]]) == best
    assert found.figures["agreement"] < 1


def test_questions_with_the_same_choices_are_written_together_greedily(tmp_path: Path) -> None:
    rows = [{"prompt": f"Q{n}", "choices": ["yes", "no"] if n % 2 else ["a", "b"], "answer": 0} for n in range(6)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    subject = ScriptedSubject(written=lambda prompt, choices: choices[prompt in ("Q1", "Q2")])
    found = open_evaluation("constrained-choice", rows={"name": "jsonl", "path": str(tmp_path / "a.jsonl")}).run(
        subject
    )
    assert [config.choices for config in subject.configs] == [(" a", " b"), (" yes", " no")]
    assert all(config.rules.greedy for config in subject.configs)
    assert [row["decoded"] for row in found.rows] == [0, 1, 1, 0, 0, 0]
    assert found.figures["accuracy_decoded"] == pytest.approx(4 / 6)
    assert next(iter(found.notes)) == "6 questions"


@pytest.mark.parametrize(("end", "delimiter"), [("\n", None), (" ", ""), (" \n\n", ""), ("", None)])
def test_what_is_written_begins_with_the_spaces_that_end_a_prompt_as_what_is_scored_does(
    tmp_path: Path, end: str, delimiter: str | None
) -> None:
    rows = [{"prompt": f"Is it {n}?\nAnswer:{end}", "choices": [*"ABCD"], "answer": 0} for n in range(8)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    subject = LlamaSubject(write_llama(tmp_path / "llama", begins=True, vocab=500))
    own = {} if delimiter is None else {"delimiter": delimiter}
    data = {"name": "jsonl", "path": str(tmp_path / "a.jsonl")}
    assert open_evaluation("constrained-choice", rows=data, **own).run(subject).figures["agreement"] == 1


def test_a_prompt_leaves_room_for_the_choice_and_its_end(tmp_path: Path) -> None:
    rows = [{"prompt": "x" * n, "choices": ["a", "b"], "answer": 0} for n in range(1, 41)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked: list[str] = []
    subject = ScriptedSubject(written=lambda prompt, choices: asked.append(prompt) or choices[0], max_seq_len=40)
    data = {"name": "jsonl", "path": str(tmp_path / "a.jsonl")}
    found = open_evaluation("constrained-choice", rows=data, too_long="skip").run(subject)
    assert 1 + max(map(len, asked)) + len(" a") + 1 <= 40
    assert found.figures["too_long"] == 40 - len(asked)
    with pytest.raises(
        UsageError, match=r"has \d+ tokens and needs 9 more to be answered, and the context of the model 40"
    ):
        open_evaluation("constrained-choice", rows=data).run(subject)


def test_a_layout_without_texts_is_refused_before_the_first_forward() -> None:
    subject = ScriptedSubject(texts=False)
    with pytest.raises(UsageError, match=r"which a pipeline and ranks that share rows cannot\. Run it with mt-eval"):
        open_evaluation("constrained-choice", rows=MMLU).run(subject)
    assert subject.asked == []


def test_a_prompt_for_each_choice_is_refused() -> None:
    rows = {"name": "winogrande", "path": str(FILES / "winogrande.jsonl")}
    with pytest.raises(UsageError, match=r"each choice has a prompt of its own"):
        open_evaluation("constrained-choice", rows=rows).run(ScriptedSubject())
    with pytest.raises(UsageError, match=r"each choice has a prompt of its own"):
        open_evaluation("constrained-choice", rows=rows).check(ScriptedSubject())  # type: ignore[attr-defined]


def test_a_subject_that_writes_something_else_is_named() -> None:
    subject = ScriptedSubject(written=lambda prompt, choices: "E")
    with pytest.raises(ComponentError, match=r"the subject wrote 'E' where the choices were ' A', ' B', ' C', ' D'"):
        open_evaluation("constrained-choice", rows=MMLU).run(subject)
