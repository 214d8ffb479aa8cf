"""The form of a row by its fields, against the turns that are made of it."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from mt_core.data.shapes import conversation
from mt_train.data.written_forms import is_plain

ASKED = {"role": "user", "content": "a"}
SAID = {"role": "assistant", "content": "b"}
SHAPES: list[dict[str, Any]] = [
    {"prompt": "a", "response": "b"},
    {"instruction": "a", "output": "b"},
    {"instruction": "a", "output": "b", "input": ""},
    {"messages": [ASKED, SAID]},
    {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
    {"prompt": "a", "chosen": "b", "rejected": "c"},
    {"prompt": [ASKED], "chosen": "b", "rejected": "c"},
    {"prompt": "a", "chosen": [SAID], "rejected": "c"},
    {"prompt": "a", "chosen": SAID, "rejected": SAID},
    {"chosen": [ASKED, SAID], "rejected": [ASKED, {**SAID, "content": "c"}]},
    {"prompt": "a", "response": "b", "label": True},
    {"prompt": "a", "answers": [{"text": "b", "score": 1}]},
    {"prompt": "a", "choices": ["b", "c"], "answer": 0},
    {"prompt": "a", "response": "b", "messages": None},
    {"prompt": [ASKED], "response": [SAID]},
    {"prompt": "a", "response": SAID},
]
BESIDE: list[dict[str, Any]] = [{}, {"system": ""}, {"system": None}, {"system": "s"}]
BESIDE += [{"history": []}, {"history": None}, {"history": [["c", "d"]]}]


@pytest.mark.parametrize(("shape", "beside"), list(product(SHAPES, BESIDE)))
def test_fields_tell_the_form_of_the_turns(shape: dict[str, Any], beside: dict[str, Any]) -> None:
    row = {"id": "r:1", **shape, **beside}
    assert is_plain(row) == all(turn.get("raw", False) for turn in conversation(row))


@pytest.mark.parametrize("row", [{"text": "a"}, {"input_ids": [1, 2], "prompt": "a", "response": "b"}, {"other": 1}])
def test_a_row_that_is_no_conversation_has_no_form(row: dict[str, Any]) -> None:
    assert is_plain({"id": "r:1", **row}) is None
