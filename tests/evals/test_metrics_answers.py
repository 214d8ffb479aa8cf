"""Metrics that read something out of an answer: numbers, labels, letters; and how totals are made."""

from __future__ import annotations

import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from pairs import ALL

from mt_core import DataError, MtConfig
from mt_plugin_evals.metrics.choice_letter import ChoiceLetter, ChoiceLetterConfig
from mt_plugin_evals.metrics.classification import Classification, ClassificationConfig
from mt_plugin_evals.metrics.number import Number, read_number
from mt_plugin_evals.metrics.totals import means

ROW = {"id": "rows.jsonl:1"}


# ----------------------------------------------------------------------------------------------------------- number


def by_harness(prediction: str, reference: str) -> tuple[float, float]:
    """Strict and flexible match of lm_eval's own task file, filters and metric."""
    import lm_eval.tasks
    import yaml
    from lm_eval.api.metrics import exact_match_hf_evaluate
    from lm_eval.filters.extraction import RegexFilter

    file = Path(lm_eval.tasks.__file__).parent / "gsm8k" / "gsm8k.yaml"
    task = yaml.safe_load(file.read_text())
    wishes = {key: task["metric_list"][0][key] for key in ("ignore_case", "ignore_punctuation", "regexes_to_ignore")}
    found = []
    for each in task["filter_list"]:
        options = {key: value for key, value in each["filter"][0].items() if key != "function"}
        ((text,),) = RegexFilter(**options).apply([[prediction]], [{}])
        found.append(float(exact_match_hf_evaluate([text], [reference], **wishes)["exact_match"]))
    return found[0], found[1]


ANSWERS = [
    "#### 7",
    "so 7",
    "7.",
    "$7",
    "#### 7.0",
    "#### $7",
    "it is 7, and , .",
    "#### seven",
    "1 2 7 #### 8",
    "####7",
    "-7",
    "#### -7",
]
REFERENCES = ["2 + 5 = 7\n#### 7", "#### 1,234", "#### -7", "#### 7"]


@pytest.mark.parametrize("reference", REFERENCES)
def test_strict_and_flexible_equal_lm_evals_task(reference: str) -> None:
    pytest.importorskip("lm_eval")
    for answer in [*ANSWERS, *[text for text, _ in ALL if "\0" not in text]]:  # NumPy drops a trailing NUL
        found = Number(MtConfig()).score(answer, [reference], ROW)
        assert (found["strict"], found["flexible"]) == by_harness(answer, reference), answer


@given(answer=st.text("0123456789.,$-# \naZ", max_size=30), reference=st.sampled_from(REFERENCES))
def test_strict_and_flexible_equal_lm_evals_task_for_any_text(answer: str, reference: str) -> None:
    pytest.importorskip("lm_eval")
    found = Number(MtConfig()).score(answer, [reference], ROW)
    assert (found["strict"], found["flexible"]) == by_harness(answer, reference)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("#### 29.00", "29"),
        ("costs $29.00.", "29"),
        ("#### 1,234", "1234"),
        ("1 apple #### 7 apples, not 8", "7"),
        ("nothing after #### here, but 5 before", "5"),
        ("-$0.5", "-0.5"),
        ("$-0.5", "-0.5"),
        ("9-2", "2"),
        ("9 \u2212 2 is \u22127", "-7"),
        (".5", "0.5"),
        ("no, not one.", None),
        (",", None),
        ("", None),
    ],
)
def test_a_number_is_read_as_a_decimal(text: str, number: str | None) -> None:
    assert read_number(text) == (None if number is None else Decimal(number))


def test_numbers_that_lm_eval_takes_for_others_are_equal_and_answers_without_one_are_counted() -> None:
    metric = Number(MtConfig())
    rows = [metric.score(answer, ["#### 29"], ROW) for answer in ("It is $29.00", "none at all", "30")]
    assert [(row["flexible"], row["number"], row["unread"]) for row in rows] == [(0, 1, 0), (0, 0, 1), (0, 0, 0)]
    total = metric.total(rows)
    assert (total["number"], total["unread"]) == (pytest.approx(1 / 3), pytest.approx(1 / 3))
    with pytest.raises(DataError, match=r"rows.jsonl:1: the reference 'none' has no number"):
        metric.score("7", ["none"], ROW)


# --------------------------------------------------------------------------------------------------- classification


def label_figures(said: list[str], expected: list[str], **options: Any) -> dict[str, float]:
    pytest.importorskip("sklearn")
    metric = Classification(ClassificationConfig(labels="red,green,blue", **options))
    rows = [metric.score(text, [label], ROW) for text, label in zip(said, expected, strict=True)]
    return dict(metric.total(rows))


def test_figures_of_labels_equal_scikit_learn_and_unread_answers_are_wrong() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    draws = np.random.default_rng(2)
    names = ["red", "green", "blue"]
    expected = [names[at] for at in draws.integers(3, size=200)]
    said = [names[at] if at < 3 else "?" for at in draws.integers(4, size=200)]
    found = label_figures([f" {text.upper()}. Because." for text in said], expected, positive="green")
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(expected, said))
    assert found["mcc"] == pytest.approx(metrics.matthews_corrcoef(expected, said))
    assert found["unread"] == said.count("?") / 200
    for average, labels in (("macro", names), ("weighted", names), ("positive", ["green"])):
        kind = "macro" if average == "positive" else average
        wanted = metrics.precision_recall_fscore_support(expected, said, labels=labels, average=kind, zero_division=0)
        ours = [found[f"{figure}_{average}"] for figure in ("precision", "recall", "f1")]
        assert ours == pytest.approx(list(wanted[:3]))


def test_a_label_is_read_at_the_begin_of_an_answer_or_by_a_pattern() -> None:
    assert label_figures(["red", "**Red**, I think", "reddish", "it is red", ""], ["red"] * 5)[
        "accuracy"
    ] == pytest.approx(2 / 5)
    assert label_figures(["so: red", "so: RED!", "red"], ["red"] * 3, pattern=r"so: (\w+)")[
        "accuracy"
    ] == pytest.approx(2 / 3)


def test_the_longest_of_labels_that_begin_alike_is_read() -> None:
    pytest.importorskip("sklearn")
    metric = Classification(ClassificationConfig(labels=("not", "not equal")))
    assert metric.score("not equal.", ["not equal"], ROW)["accuracy"] == 1


@pytest.mark.parametrize(
    ("labels", "answer", "said"),
    [
        ("正面,负面", "正面的评价", "正面"),
        ("正面,负面", "负面。", "负面"),
        ("正面,负面", "这是正面", None),
        ("正,正面", "正面的", "正面"),
        ("A,B", "A是正确的", "A"),
        ("A,B", "Apple", None),
        ("はい,いいえ", "はいそうです", "はい"),
        ("ใช่,ไม่", "ใช่ครับ", "ใช่"),
        ("да,нет", "давно", None),
        ("да,нет", "Да, давно", "да"),
        ("gut,mies", "gutä", None),
        ("1,-1,0", "-1", "-1"),
        ("1,-1,0", "**-1**, I think", "-1"),
        ("1,-1,0", " 1.", "1"),
        ("+,-", "- it is bad", "-"),
    ],
)
def test_a_label_ends_with_its_word_where_words_have_spaces(labels: str, answer: str, said: str | None) -> None:
    pytest.importorskip("sklearn")
    metric, names = Classification(ClassificationConfig(labels=labels)), labels.split(",")  # type: ignore[arg-type]
    found = metric.score(answer, [names[0]], ROW)["label"]
    assert found == (-1 if said is None else names.index(said))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": "red"}, "at least 2 items"),
        ({"labels": "red,Red"}, "the same but for capitals"),
        ({"labels": "red,green", "positive": "blue"}, "positive 'blue' is none of the labels red, green"),
        ({"labels": "red,green", "pattern": "("}, "no regular expression"),
        ({"labels": "red,green", "pattern": "red|green"}, "has no group; put the label in parentheses"),
    ],
)
def test_wrong_options_of_labels_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ClassificationConfig(**options)  # type: ignore[arg-type]


def test_a_reference_that_is_no_label_is_refused() -> None:
    with pytest.raises(
        DataError, match=r"rows.jsonl:1: the reference 'pink' is not one of the labels red, green, blue"
    ):
        label_figures(["red"], ["pink"])


def test_references_that_are_several_labels_are_told_from_one_that_is_none() -> None:
    pytest.importorskip("sklearn")
    metric = Classification(ClassificationConfig(labels=("red", "green")))
    with pytest.raises(DataError, match=r"the references 'red / green' are several labels, and .* takes one"):
        metric.score("red", ["red", "green"], ROW)
    assert metric.score("red", ["red", "Red"], ROW)["accuracy"] == 1


# ------------------------------------------------------------------------------------------------------------ letters


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("Answer: B", "B"),
        ("I think…\n\nAnswer: $C$", "C"),
        ("answer : d.", "D"),
        ("**Answer:** B", ""),
        ("The answer is B", ""),
        ("Answer: E", ""),
        ("Answer: A\nAnswer: B", "A"),
        ("", ""),
    ],
)
def test_a_letter_is_read_by_the_pattern_of_simple_evals(answer: str, letter: str) -> None:
    """``ANSWER_PATTERN_MULTICHOICE`` of simple-evals' common.py."""
    import re

    match = re.search(r"(?i)Answer[ \t]*:[ \t]*\$?([A-D])\$?", answer)
    assert (match.group(1).upper() if match else "") == letter
    metric = ChoiceLetter(ChoiceLetterConfig())
    for reference in "ABCD":
        assert metric.score(answer, [reference], ROW) == {
            "accuracy": float(reference == letter),
            "unread": float(not letter),
        }


def test_wrong_letters_and_unread_ones_are_different_things() -> None:
    metric = ChoiceLetter(ChoiceLetterConfig())
    total = metric.total([metric.score(text, ["(B)"], ROW) for text in ("Answer: B", "Answer: A", "B!", "no")])
    assert (total["accuracy"], total["unread"]) == (0.25, 0.5)
    with pytest.raises(DataError, match=r"rows.jsonl:1: the reference 'E' is no letter of ABCD"):
        metric.score("Answer: A", ["E"], ROW)


# ------------------------------------------------------------------------------------------------------------- totals


@given(st.lists(st.floats(0, 1), min_size=2, max_size=40))
def test_standard_errors_are_the_sample_deviation_over_the_root_of_n(values: list[float]) -> None:
    found = means([{"figure": value} for value in values])
    assert found["figure"] == pytest.approx(np.mean(values))
    assert found["figure_stderr"] == pytest.approx(np.std(values, ddof=1) / len(values) ** 0.5)


def test_one_row_has_no_standard_error() -> None:
    assert means([{"figure": 0.5}]) == {"figure": 0.5}
