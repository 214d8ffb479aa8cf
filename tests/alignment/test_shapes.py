"""Rows in the forms in which real sets have them, and rows that are no preference."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest

from mt_core import DataError, Rejected
from mt_plugin_alignment.objectives.shapes import (
    EQUAL,
    EQUAL_SCORES,
    label_of,
    margin_of,
    number_of,
    read_labelled,
    read_preference,
)

ASKED, GOOD, BAD = "What is the sky?", "It is blue.", "A fish."
USER, BEST, WORST = (
    {"role": role, "content": text} for role, text in (("user", ASKED), ("assistant", GOOD), ("assistant", BAD))
)
HUMAN, GPT, GPT_BAD = ({"from": who, "value": text} for who, text in (("human", ASKED), ("gpt", GOOD), ("gpt", BAD)))
BEFORE = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]
TOOL = {"type": "function", "function": {"name": "sky", "parameters": {"type": "object", "properties": {}}}}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": {"name": "sky"}}]}
FOUND = {"role": "tool", "content": "blue"}

PLAIN = [ASKED], [GOOD], [BAD]
LONG = ["Hi.", "Hello.", ASKED], [GOOD], [BAD]

PAIRS: dict[str, tuple[dict[str, Any], tuple[list[Any], list[Any], list[Any]]]] = {
    # https://huggingface.co/datasets/Dahoas/rm-static, as DeepSpeed-Chat reads it
    "texts": ({"prompt": ASKED, "response": GOOD, "chosen": GOOD, "rejected": BAD}, PLAIN),
    # https://huggingface.co/datasets/HuggingFaceH4/ultrafeedback_binarized
    "ultrafeedback binarized": (
        {
            "prompt": ASKED,
            "prompt_id": "f0e37e9f7800261167ce91143f98f511f768847236f133f2d0aed60b444ebe57",
            "chosen": [USER, BEST],
            "rejected": [USER, WORST],
            "messages": [USER, BEST],
            "score_chosen": 8.5,
            "score_rejected": 7.5,
        },
        PLAIN,
    ),
    # https://huggingface.co/datasets/trl-lib/ultrafeedback_binarized: the prompt is in the sides alone
    "sides as whole conversations": (
        {"chosen": [*BEFORE, USER, BEST], "rejected": [*BEFORE, USER, WORST], "score_chosen": 8.5},
        LONG,
    ),
    # https://github.com/hiyouga/LLaMA-Factory/blob/main/data/README.md
    "alpaca": ({"instruction": ASKED, "input": "Be brief.", "chosen": GOOD, "rejected": BAD}, ([f"{ASKED}\nBe brief."], [GOOD], [BAD])),
    "alpaca with more": (
        {
            "instruction": ASKED,
            "input": "",
            "system": "You know.",
            "history": [["Hi.", "Hello."]],
            "chosen": GOOD,
            "rejected": BAD,
        },
        (["You know.", "Hi.", "Hello.", ASKED], [GOOD], [BAD]),
    ),
    "sharegpt ranking": (
        {
            "conversations": [{"from": "human", "value": "Hi."}, {"from": "gpt", "value": "Hello."}, HUMAN],
            "chosen": GPT,
            "rejected": GPT_BAD,
        },
        LONG,
    ),
    # https://huggingface.co/datasets/hiyouga/DPO-En-Zh-20k, first published so
    "sharegpt with texts": ({"conversations": [HUMAN], "chosen": GOOD, "rejected": BAD}, PLAIN),
    "openai turns": ({"messages": [*BEFORE, USER], "chosen": [BEST], "rejected": [WORST]}, LONG),
    "a prompt of turns": ({"prompt": [USER], "chosen": [BEST], "rejected": [WORST]}, PLAIN),
    # https://github.com/hiyouga/LLaMA-Factory, comparison_gpt4_data_en.json of 2023
    "two outputs": ({"instruction": ASKED, "input": "", "output": [GOOD, BAD]}, PLAIN),
    "two responses": ({"prompt": ASKED, "response": [GOOD, BAD], "history": []}, PLAIN),
    # https://platform.openai.com/docs/guides/direct-preference-optimization
    "openai's files": (
        {
            "input": {"messages": [USER], "tools": [], "parallel_tool_calls": True},
            "preferred_output": [BEST],
            "non_preferred_output": [WORST],
        },
        PLAIN,
    ),
    "answers that call tools": (
        {"prompt": ASKED, "tools": [TOOL], "chosen": [CALL, FOUND, BEST], "rejected": [WORST]},
        ([ASKED], [None, "blue", GOOD], [BAD]),
    ),
    "scored": (
        {"prompt": ASKED, "answers": [{"text": "Grey.", "score": 2}, {"text": GOOD, "score": 9}, {"text": BAD, "score": 1}]},
        PLAIN,
    ),
    "a table with all fields": (
        {"prompt": ASKED, "chosen": GOOD, "rejected": BAD, "messages": None, "system": None, "margin": None, "tools": None},
        PLAIN,
    ),
    "an empty prompt": ({"prompt": "", "chosen": GOOD, "rejected": BAD}, ([""], [GOOD], [BAD])),
}  # fmt: skip


@pytest.mark.parametrize("form", PAIRS)
def test_each_published_form_is_a_prompt_and_two_answers(form: str) -> None:
    row, expected = PAIRS[form]
    found = read_preference({"id": "rows:1", **row})
    assert not isinstance(found, Rejected)
    texts = tuple([turn["content"] for turn in part] for part in (found.prompt, found.chosen, found.rejected))
    assert texts == expected
    assert {turn["role"] for turn in (found.chosen[0], found.rejected[0])} == {"assistant"}


def test_tools_stand_at_the_first_turn() -> None:
    found = read_preference({"id": "rows:1", **PAIRS["answers that call tools"][0]})
    assert not isinstance(found, Rejected)
    assert found.prompt[0]["tools"] == [TOOL]


NO_PAIRS: dict[str, tuple[dict[str, Any], str]] = {
    "equal texts": ({"prompt": ASKED, "chosen": GOOD, "rejected": GOOD}, EQUAL),
    "equal turns": ({"chosen": [USER, BEST], "rejected": [USER, BEST]}, EQUAL),
    "equal in two spellings": ({"prompt": ASKED, "chosen": [BEST], "rejected": GPT | {"value": GOOD}}, EQUAL),
    "empty": ({"prompt": ASKED, "chosen": "", "rejected": BAD}, "'chosen' is empty"),
    "white space": ({"prompt": ASKED, "chosen": GOOD, "rejected": " \n"}, "'rejected' is empty"),
    "an empty turn": (
        {"prompt": [USER], "chosen": [BEST], "rejected": [{"role": "assistant", "content": ""}]},
        "'rejected' is empty",
    ),
    "equal scores": ({"prompt": ASKED, "answers": [{"text": GOOD, "score": 1}, {"text": BAD, "score": 1.0}]}, EQUAL_SCORES),
    "one answer": ({"prompt": ASKED, "answers": [{"text": GOOD, "score": 1}]}, EQUAL_SCORES),
}  # fmt: skip


@pytest.mark.parametrize("kind", NO_PAIRS)
def test_a_row_that_prefers_nothing_is_dropped_with_a_reason(kind: str) -> None:
    row, reason = NO_PAIRS[kind]
    assert read_preference({"id": "rows:1", **row}) == Rejected(reason, "rows:1")


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "one side": ({"prompt": ASKED, "chosen": GOOD}, r"no field 'rejected'; fields found: 'prompt', 'chosen'.*--data\.columns"),
    "a null side": ({"prompt": ASKED, "chosen": GOOD, "rejected": None}, "field 'rejected' is of type NoneType, not text"),
    "no side": ({"prompt": ASKED, "response": GOOD}, "no field 'chosen'"),
    "a number": ({"prompt": ASKED, "chosen": GOOD, "rejected": 3}, "field 'rejected' is of type int, not text"),
    "a labelled row": (
        {"prompt": ASKED, "response": GOOD, "label": True},
        "one answer with a label is no pair; this objective reads 'chosen' and 'rejected'",
    ),
    "other prompts": (
        {"chosen": [USER, BEST], "rejected": [{"role": "user", "content": "Why?"}, WORST]},
        "'chosen' and 'rejected' part at a turn of the user, so they answer different prompts. Give the prompt once",
    ),
    "other prompts beside a prompt": (
        {"prompt": ASKED, "chosen": [USER, BEST], "rejected": [{"role": "user", "content": "Why?"}, WORST]},
        "part at a turn of the user",
    ),
    "no prompt": (
        {"question": ASKED, "chosen": GOOD, "rejected": BAD},
        r"no prompt; fields found: 'question', 'chosen', 'rejected'\. Name it, for instance --data\.columns '\{prompt: NAME\}'.*hh-rlhf",
    ),
    "a system message alone": ({"system": "s", "chosen": GOOD, "rejected": BAD}, "no prompt"),
    "a prompt that ends with an answer": (
        {"messages": [USER, BEST], "chosen": "r", "rejected": "x"},
        "the turns before 'chosen' and 'rejected' end with one of the assistant",
    ),
    "an unknown role": (
        {"prompt": ASKED, "chosen": [{"role": "bard", "content": GOOD}], "rejected": BAD},
        "field 'chosen', turn 1 has the role 'bard'",
    ),
    "a margin of text": (
        {"prompt": ASKED, "chosen": GOOD, "rejected": BAD, "margin": "much"},
        r"field 'margin' is 'much'; it is a number.*--data\.columns '\{other: margin\}'",
    ),
    "scores of text": ({"prompt": ASKED, "answers": [{"text": GOOD, "score": "9"}]}, "field 'answers' must be a list of"),
    "answers of text": ({"prompt": ASKED, "answers": [GOOD, BAD]}, "field 'answers' must be a list of"),
    "openai's without its input": ({"preferred_output": [BEST], "non_preferred_output": [WORST]}, "field 'input' is None"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_row_that_is_no_pair_is_told_with_its_place_and_the_field(fault: str) -> None:
    row, says = FAULTS[fault]
    with pytest.raises(DataError, match=says) as caught:
        read_preference({"id": "rows:7", **row})
    assert str(caught.value).startswith("rows:7: ")


NUMBERS = [(None, None), (2, 2.0), (-0.5, -0.5), ("", None), ("4", 4.0), ("-1.5", -1.5), (Decimal("1.5"), 1.5)]


@pytest.mark.parametrize(("value", "expected"), NUMBERS)
def test_a_margin_is_a_number_or_none(value: Any, expected: float | None) -> None:
    assert margin_of({"id": "rows:1", "margin": value}) == expected
    assert margin_of({"id": "rows:1"}) is None
    found = read_preference({"id": "rows:1", "prompt": ASKED, "chosen": GOOD, "rejected": BAD, "margin": value})
    assert not isinstance(found, Rejected)
    assert found.margin == expected


@pytest.mark.parametrize(("value", "expected"), [each for each in NUMBERS if each[1] is not None])
def test_a_score_may_be_of_a_table_of_texts(value: Any, expected: float) -> None:
    assert number_of({"id": "rows:1", "score": value}, "score", "it is a number") == expected


@pytest.mark.parametrize("value", [True, math.nan, math.inf, [1], "nan", "1e999", 10**400])
def test_what_is_no_finite_number_is_no_margin(value: Any) -> None:
    with pytest.raises(DataError, match="rows:1: field 'margin' is "):
        margin_of({"id": "rows:1", "margin": value})


LABELLED: dict[str, dict[str, Any]] = {
    "prompt, response": {"prompt": ASKED, "response": GOOD},
    "alpaca": {"instruction": ASKED, "output": GOOD},
    "messages": {"messages": [USER, BEST]},
    "sharegpt": {"conversations": [HUMAN, GPT]},
}


@pytest.mark.parametrize("form", LABELLED)
@pytest.mark.parametrize(
    ("label", "is_good"), [(True, True), ("false", False), (1.0, True), (0, False), ("True", True)]
)
def test_a_labelled_row_is_a_prompt_an_answer_and_whether_it_is_good(form: str, label: Any, is_good: bool) -> None:
    found = read_labelled({"id": "rows:1", **LABELLED[form], "label": label})
    assert not isinstance(found, Rejected)
    assert [turn["content"] for turn in found.prompt] == [ASKED]
    assert ([turns[0]["content"] for turns in found.answers], found.labels) == ([GOOD], [is_good])


def test_a_pair_is_a_good_answer_and_a_bad_one() -> None:
    found = read_labelled({"id": "rows:1", "prompt": ASKED, "chosen": GOOD, "rejected": BAD})
    assert not isinstance(found, Rejected)
    assert [turn["content"] for turn in found.prompt] == [ASKED]
    assert ([turns[0]["content"] for turns in found.answers], found.labels) == ([GOOD, BAD], [True, False])
    assert read_labelled({"id": "rows:1", "prompt": ASKED, "chosen": GOOD, "rejected": GOOD}) == Rejected(
        "'chosen' and 'rejected' are the same", "rows:1"
    )


def test_an_empty_labelled_answer_is_dropped_with_a_reason() -> None:
    row = {"id": "rows:1", "prompt": ASKED, "response": " ", "label": True}
    assert read_labelled(row) == Rejected("the answer is empty", "rows:1")


def test_a_conversation_that_ends_with_a_question_has_no_answer_to_label() -> None:
    with pytest.raises(DataError, match="rows:1: the last turn is no answer"):
        read_labelled({"id": "rows:1", "messages": [USER, BEST, USER], "label": 1})


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({}, "field 'label' is missing"),
        ({"label": None}, "field 'label' is missing"),
        ({"label": "maybe"}, r"field 'label' is 'maybe'; it says whether the answer is good: true or false, 1 or 0\."),
        ({"label": 2}, "field 'label' is 2;"),
        ({"label": [True]}, r"field 'label' is \[True\];"),
    ],
)
def test_what_is_no_label_is_told_with_row_and_key(row: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=f"rows:1: {says}"):
        label_of({"id": "rows:1", **row})
