"""Rows become questions, and one that is none is named before anything is asked."""

from __future__ import annotations

from typing import Any

import pytest

from mt_core import DataError
from mt_plugin_evals.choices.questions import Reading, read_questions


class Rows:
    def __init__(self, *rows: dict[str, Any]) -> None:
        self._rows = [{"id": f"a.jsonl:{number}", **row} for number, row in enumerate(rows, 1)]

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, index: int) -> dict[str, Any]:
        return self._rows[index]


GOOD = {"prompt": "Which?", "choices": ["a", "b", "c"], "answer": 1}
FAULTS = {
    "no choices": (
        {"prompt": "x"},
        r"a\.jsonl:2: no choices beside its fields \(prompt\), where a list of texts is needed",
    ),
    "empty choices": ({**GOOD, "choices": None}, r"no choices beside its fields \(prompt, answer\), where a list"),
    "choices that are one text": ({**GOOD, "choices": "ab"}, r"choices is 'ab', where a list of texts is needed"),
    "one choice": ({**GOOD, "choices": ["a"]}, r"1 choices; a question has 2 to 26"),
    "an empty choice": ({**GOOD, "choices": ["a", " ", "c"]}, r"choice B is empty"),
    "four choices in a set of three": ({**GOOD, "choices": list("abcd")}, r"a\.jsonl:2: 4 choices in a set of 3\."),
    "no answer": ({**GOOD, "answer": None}, r"a\.jsonl:2: no answer\. .* unanswered skip"),
    "the answer of a hidden split": ({**GOOD, "answer": -1}, r"no answer"),
    "an answer beyond the choices": ({**GOOD, "answer": 3}, r"answer is 3, and there are 3 choices"),
    "a letter beyond the choices": ({**GOOD, "answer": "D"}, r"answer is 'D'.* a letter from A to C"),
    "a truth value": ({**GOOD, "answer": True}, r"answer is True"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_row_that_is_no_question_is_named(fault: str) -> None:
    row, message = FAULTS[fault]
    with pytest.raises(DataError, match=message):
        read_questions(Rows(GOOD, row), Reading(count=3))


def test_letters_and_indices_are_answers_and_texts_of_a_row_are_fields() -> None:
    rows = Rows({**GOOD, "answer": "C", "topic": "x", "n": 3}, {**GOOD, "fields": {"stem": "y"}, "group": "g"})
    (one, other), _ = read_questions(rows, Reading())
    assert (one.answer, one.right, one.several) == (2, {2}, False)
    assert one.fields == {"prompt": "Which?", "topic": "x"}
    assert other.fields == {"prompt": "Which?", "stem": "y"}
    assert other.group == "g"


def test_several_right_answers() -> None:
    (one,), _ = read_questions(Rows({**GOOD, "right": [2, 0]}), Reading())
    assert (one.right, one.several) == ({0, 2}, True)


def test_rows_without_an_answer_are_counted_where_they_may_be_left_out() -> None:
    rows = Rows(GOOD, {**GOOD, "answer": ""}, {**GOOD, "answer": None}, GOOD)
    questions, unanswered = read_questions(rows, Reading(skip_unanswered=True))
    assert ([each.id for each in questions], unanswered) == (["a.jsonl:1", "a.jsonl:4"], 2)


def test_nothing_to_ask_is_an_error() -> None:
    with pytest.raises(DataError, match=r"there is nothing to ask: 1 rows, 1 of them without an answer"):
        read_questions(Rows({**GOOD, "answer": None}), Reading(skip_unanswered=True))
    with pytest.raises(DataError, match=r"there is nothing to ask: 0 rows"):
        read_questions(Rows(), Reading())


def test_a_limit_takes_the_first_of_each_group_and_groups_can_be_named() -> None:
    rows = Rows(*({**GOOD, "group": name} for name in "xyxyxz"))
    questions, _ = read_questions(rows, Reading(limit=2))
    assert [each.id[-1] for each in questions] == list("12346")
    questions, _ = read_questions(rows, Reading(groups=("z",)))
    assert [each.id[-1] for each in questions] == ["6"]
    with pytest.raises(DataError, match=r"no rows of w; there are x, y, z"):
        read_questions(rows, Reading(groups=("w",)))
