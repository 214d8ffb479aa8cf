"""Every documented shape of a row as a conversation, and what fits none, or two."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mt_core import DataError, conversation, is_conversation, preference


def spoken_turns(*turns: Any) -> list[dict[str, Any]]:
    roles = {"s": "system", "u": "user", "a": "assistant"}
    return [{"role": roles[role], "content": text, **more} for role, text, more in turns]


def plain_turns(prompt: str, response: str, **more: Any) -> list[dict[str, Any]]:
    return spoken_turns(("u", prompt, {"raw": True}), ("a", response, {"raw": True, **more}))


U, A, S = ("u", "q", {}), ("a", "r", {}), ("s", "be kind", {})
LISTED = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "r"}]
SCORED = [{"text": "bad", "score": 1}, {"text": "good", "score": 2.5}, {"text": "as good", "score": 2.5}]
PARTS = [{"type": "text", "text": "one "}, {"type": "text", "text": "two", "image_url": None}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
CALLED = {**CALL, "function": {"name": "add", "arguments": {"a": 2}}}

ROWS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "prompt, response": ({"prompt": "q", "response": "r"}, plain_turns("q", "r")),
    "other fields": ({"prompt": "q", "response": "r", "source": 3, "text": "q r"}, plain_turns("q", "r")),
    "system": ({"prompt": "q", "response": "r", "system": "be kind"}, [*spoken_turns(S), *plain_turns("q", "r")]),
    "empty system": ({"prompt": "q", "response": "r", "system": ""}, plain_turns("q", "r")),
    "history of pairs": (
        {"prompt": "q", "response": "r", "history": [["a", "b"]]},
        [*spoken_turns(("u", "a", {}), ("a", "b", {})), *plain_turns("q", "r")],
    ),
    "history of messages": (
        {"prompt": "q", "response": "r", "history": LISTED},
        [*spoken_turns(U, A), *plain_turns("q", "r")],
    ),
    "prompt and response of turns": (
        {"prompt": [*LISTED, {"role": "user", "content": "p"}], "response": [LISTED[1]], "tools": [TOOL]},
        spoken_turns(("u", "q", {"tools": [TOOL]}), ("a", "r", {"train": False}), ("u", "p", {}), A),
    ),
    "prompt of turns, response of text": (
        {"prompt": LISTED[:1], "response": "r", "system": "be kind"},
        spoken_turns(S, U, ("a", "r", {"raw": True})),
    ),
    "no history": ({"prompt": "q", "response": "r", "history": None}, plain_turns("q", "r")),
    "alpaca": ({"instruction": "q", "input": "", "output": "r"}, spoken_turns(U, A)),
    "alpaca, input": (
        {"instruction": "q", "input": "i", "output": "r"},
        spoken_turns(("u", "q\ni", {"input": "i"}), A),
    ),
    "sharegpt": (
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "r"}]},
        spoken_turns(U, A),
    ),
    "sharegpt, system": ({"conversations": LISTED, "system": "be kind"}, spoken_turns(S, U, A)),
    "messages": ({"messages": [{"role": "system", "content": "be kind"}, *LISTED]}, spoken_turns(S, U, A)),
    "messages, developer": (
        {"messages": [{"role": "developer", "content": "be kind"}, *LISTED]},
        spoken_turns(S, U, A),
    ),
    "train and weight": (
        {"messages": [{**LISTED[0], "train": True}, {**LISTED[1], "weight": 2}, {**LISTED[1], "weight": 0}]},
        spoken_turns(("u", "q", {"train": True}), ("a", "r", {"weight": 2.0}), ("a", "r", {"train": False})),
    ),
    "train, as axolotl and ms-swift call it": (
        {"messages": [LISTED[0], {**LISTED[1], "training": False}, {**LISTED[1], "loss": False, "train_detail": []}]},
        spoken_turns(U, ("a", "r", {"train": False}), ("a", "r", {"train": False})),
    ),
    "a bad answer": ({"messages": LISTED, "label": False}, spoken_turns(U, ("a", "r", {"train": False}))),
    "a class": ({"messages": LISTED, "label": 0}, spoken_turns(U, A)),
    "parts": ({"messages": [{**LISTED[0], "content": PARTS}, LISTED[1]]}, spoken_turns(("u", "one two", {}), A)),
    "tools": (
        {
            "messages": [
                LISTED[0],
                {"role": "assistant", "content": None, "tool_calls": [{**CALL, "index": None}]},
                {"role": "tool", "tool_call_id": "1", "content": "4"},
                LISTED[1],
            ],
            "tools": json.dumps([TOOL]),
        },
        [
            {"role": "user", "content": "q", "tools": [TOOL]},
            {"role": "assistant", "content": None, "tool_calls": [CALLED]},
            {"role": "tool", "content": "4", "tool_call_id": "1"},
            LISTED[1],
        ],
    ),
    "the function of old": (
        {
            "messages": [
                LISTED[0],
                {"role": "assistant", "content": "", "function_call": {"name": "add", "arguments": '{"a": 2}'}},
                {"role": "function", "name": "add", "content": "4"},
                LISTED[1],
            ],
            "functions": json.dumps([TOOL["function"]]),
            "tools": None,
        },
        [
            {**LISTED[0], "tools": [TOOL]},
            {"role": "assistant", "content": "", "tool_calls": [{"name": "add", "arguments": {"a": 2}}]},
            {"role": "tool", "content": "4", "name": "add"},
            LISTED[1],
        ],
    ),
    "sharegpt, tools": (
        {
            "conversations": [
                {"from": "human", "value": "q"},
                {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 2}}'},
                {"from": "observation", "value": "4"},
                {"from": "gpt", "value": "r"},
            ],
            "tools": [TOOL],
        },
        [
            {"role": "user", "content": "q", "tools": [TOOL]},
            {"role": "assistant", "content": None, "tool_calls": [{"name": "add", "arguments": {"a": 2}}]},
            {"role": "tool", "content": "4"},
            LISTED[1],
        ],
    ),
    "preference": ({"prompt": "q", "chosen": "r", "rejected": "x"}, plain_turns("q", "r")),
    "preference after turns": ({"messages": [LISTED[0]], "chosen": LISTED[1], "rejected": "x"}, spoken_turns(U, A)),
    "preference of an instruction": (
        {"instruction": "q", "chosen": "r", "rejected": "x"},
        spoken_turns(U, ("a", "r", {"raw": True})),
    ),
    "preference with the chosen turns again": (
        {"prompt": "q", "messages": LISTED, "chosen": LISTED, "rejected": [LISTED[0], LISTED[0]]},
        spoken_turns(U, A),
    ),
    "good": ({"prompt": "q", "response": "r", "label": True}, plain_turns("q", "r")),
    "bad": ({"prompt": "q", "response": "r", "label": 0}, plain_turns("q", "r", train=False)),
    "good, of a table of texts": ({"prompt": "q", "response": "r", "label": "True"}, plain_turns("q", "r")),
    "bad, of a table of numbers": ({"prompt": "q", "response": "r", "label": 0.0}, plain_turns("q", "r", train=False)),
    "one of a table with all fields": (
        {
            "prompt": None,
            "response": None,
            "label": None,
            "messages": LISTED,
            "text": None,
            "chosen": None,
            "rejected": None,
        },
        spoken_turns(U, A),
    ),
    "another of that table": (
        {
            "prompt": "q",
            "response": "r",
            "label": None,
            "messages": None,
            "text": None,
            "chosen": None,
            "rejected": None,
        },
        plain_turns("q", "r"),
    ),
    "scored": ({"prompt": "q", "answers": SCORED}, plain_turns("q", "good")),
    "choice by number": (
        {"prompt": "q", "choices": ["x", "y"], "answer": 1},
        plain_turns("q\nA. x\nB. y\nAnswer:", " B"),
    ),
    "choice by letter": (
        {"prompt": "q", "choices": ["x", "y"], "answer": "a"},
        plain_turns("q\nA. x\nB. y\nAnswer:", " A"),
    ),
}


@pytest.mark.parametrize("shape", ROWS)
def test_each_shape_is_a_conversation(shape: str) -> None:
    row, expected = ROWS[shape]
    assert conversation({"id": "rows:1", **row}) == expected
    assert is_conversation(row)


PREFERENCES: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "texts": ({"prompt": "q", "chosen": "r", "rejected": "x"}, [["q"], ["r"], ["x"]]),
    "no prompt": ({"chosen": "r", "rejected": "x"}, [[], ["r"], ["x"]]),
    "messages with the prompt in them": (
        {"chosen": LISTED, "rejected": [LISTED[0], {"role": "assistant", "content": "x"}]},
        [["q"], ["r"], ["x"]],
    ),
    "messages that repeat the prompt": (
        {"prompt": "q", "chosen": LISTED, "rejected": [LISTED[0], {"role": "assistant", "content": "x"}]},
        [["q"], ["r"], ["x"]],
    ),
    "messages for all three": (
        {"prompt": [LISTED[0]], "chosen": [LISTED[1]], "rejected": [{"role": "assistant", "content": "x"}]},
        [["q"], ["r"], ["x"]],
    ),
    "calls that differ": (
        {
            "prompt": "q",
            "chosen": [{"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}, LISTED[1]],
            "rejected": [{"role": "assistant", "content": None, "tool_calls": [{"name": "g"}]}, LISTED[1]],
        },
        [["q"], [None, "r"], [None, "r"]],
    ),
    "system": ({"system": "s", "prompt": "q", "chosen": "r", "rejected": "x"}, [["s", "q"], ["r"], ["x"]]),
    "history": (
        {"history": [["a", "b"]], "prompt": "q", "chosen": "r", "rejected": "x"},
        [["a", "b", "q"], ["r"], ["x"]],
    ),
    "alpaca": ({"instruction": "q", "input": "i", "chosen": "r", "rejected": "x"}, [["q\ni"], ["r"], ["x"]]),
    "turns so far, and one turn each": (
        {
            "conversations": [{"from": "human", "value": "q"}],
            "chosen": {"from": "gpt", "value": "r"},
            "rejected": {"from": "gpt", "value": "x"},
        },
        [["q"], ["r"], ["x"]],
    ),
    "turns so far, and texts": ({"messages": [LISTED[0]], "chosen": "r", "rejected": "x"}, [["q"], ["r"], ["x"]]),
    "messages that are the chosen ones": (
        {"messages": LISTED, "chosen": LISTED, "rejected": [LISTED[0], {"role": "assistant", "content": "x"}]},
        [["q"], ["r"], ["x"]],
    ),
    "equal sides": ({"prompt": "q", "chosen": "r", "rejected": "r"}, [["q"], ["r"], ["r"]]),
}


@pytest.mark.parametrize("kind", PREFERENCES)
def test_a_preference_is_a_prompt_and_two_answers(kind: str) -> None:
    row, expected = PREFERENCES[kind]
    parts = preference({"id": "rows:1", **row})
    assert [[turn["content"] for turn in part] for part in parts] == expected


def test_the_tools_of_a_preference_are_those_of_its_first_turn() -> None:
    prompt, _, _ = preference({"id": "rows:1", "tools": [TOOL], "prompt": "q", "chosen": "r", "rejected": "x"})
    assert prompt[0]["tools"] == [TOOL]


def messages(**change: Any) -> dict[str, Any]:
    return {"messages": [LISTED[0], {**LISTED[1], **change}]}


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "none": (
        {"question": "q", "answer": "r"},
        r"no field 'prompt'; fields found: 'question', 'answer'. The nearest shape is prompt, "
        r"response \(and perhaps system, history\)\..*--data.columns '\{prompt: NAME, response: NAME\}'",
    ),
    "near alpaca": ({"instruction": "q", "answer": "r"}, r"no field 'output'.*--data.columns '\{output: NAME\}'"),
    "near choice": ({"choices": [], "answer": 1}, "no field 'prompt'"),
    "two": (
        {"prompt": "q", "response": "r", "messages": LISTED},
        r"fit two shapes, \(prompt, response\) and \(messages\).*--data.columns '\{other: messages\}'",
    ),
    "two lists": ({"conversations": LISTED, "messages": LISTED}, "fit two shapes"),
    "no list": ({"messages": "q"}, r"field 'messages' must be a list of at least one turn, got 'q'"),
    "empty list": ({"messages": []}, "must be a list of at least one turn"),
    "turn of text": ({"messages": ["q"]}, r"turn 1 must have \"role\" and \"content\""),
    "no content": ({"messages": [{"role": "user"}]}, "turn 1 must have"),
    "an image": (
        messages(content=[{"type": "text", "text": "r"}, {"type": "image_url", "image_url": {"url": "x"}}]),
        "turn 2, part 2 is of type 'image_url', and only text can be trained on.*Take it out, or drop the row",
    ),
    "a part without text": (messages(content=[{"type": "text"}]), "turn 2, part 1 is of type 'text', and only text"),
    "a part that is none": (messages(content=["r"]), "turn 2, part 1 is no part of a message: 'r'"),
    "null": (messages(content=None), "turn 2 is of type NoneType, not text"),
    "role": (messages(role="bot"), "turn 2 has the role 'bot'. Known: system, user"),
    "role of another type": (messages(role=["user"]), "turn 2 has the role"),
    "calls": (messages(tool_calls="f"), "turn 2 has \"tool_calls\": 'f'; it is a list of calls such as "),
    "a call of nothing": (
        messages(tool_calls=[{"id": "1"}]),
        "turn 2, call 1 has no name of a function: .*Write it as ",
    ),
    "arguments": (
        messages(tool_calls=[{"name": "f", "arguments": "x=1"}]),
        "turn 2, call 1 has arguments that are no object, nor JSON text of one: 'x=1'",
    ),
    "a call of ShareGPT": (
        {"conversations": [{"from": "human", "value": "q"}, {"from": "function_call", "value": "f(1)"}]},
        "turn 2, call 1 has no name of a function: 'f\\(1\\)'",
    ),
    "a call of the user": (
        {"messages": [{**LISTED[0], "tool_calls": [{"name": "f"}]}, LISTED[1]]},
        "turn 1 calls a tool, which only the assistant does",
    ),
    "tools": ({"messages": LISTED, "tools": "weather"}, "field 'tools' is no list of objects.*'\\{other: tools\\}'"),
    "late system": ({"messages": [*LISTED, {"role": "system", "content": "s"}]}, "turn 3 is a system message"),
    "two systems": ({"messages": [{"role": "system", "content": "s"}, *LISTED], "system": "t"}, "Keep one of them"),
    "no answer": ({"messages": LISTED[:1]}, "has no turn of the assistant"),
    "train": (messages(train="no"), "turn 2 has \"train\": 'no'; it is true or false"),
    "parts of a turn": (
        messages(train=True, train_detail=[{"begin_offset": 0, "end_offset": 1, "train": False}]),
        'turn 2 has "train_detail": .*; it is true or false, for the whole turn',
    ),
    "functions": (
        {"messages": LISTED, "functions": ["f"]},
        "field 'functions' is no list of objects.*'\\{other: functions\\}'",
    ),
    "weight": (messages(weight=-1), 'turn 2 has "weight": -1; it is a number of 0 or more'),
    "endless weight": (messages(weight=float("inf")), '"weight": inf'),
    "history": ({"prompt": "q", "response": "r", "history": [["a"]]}, "pair 1 has 1 texts, not"),
    "number in history": ({"prompt": "q", "response": "r", "history": [["a", 1]]}, "pair 1, assistant is of type int"),
    "system of another type": ({"prompt": "q", "response": "r", "system": 5}, "field 'system' is of type int"),
    "a table's row of nulls": (
        {"prompt": None, "response": None, "messages": None},
        r"field 'prompt' is of type NoneType, not text",
    ),
    "label": ({"prompt": "q", "response": "r", "label": "sports"}, r"field 'label' is 'sports'.*'\{other: label\}'"),
    "answers": ({"prompt": "q", "answers": [{"text": "r"}]}, "field 'answers' must be a list of"),
    "choices": ({"prompt": "q", "choices": ["x"], "answer": 0}, "must be a list of 2 to 26 texts"),
    "answer": (
        {"prompt": "q", "choices": ["x", "y"], "answer": "C"},
        "it is a letter from A to B, or a number from 0 to 1",
    ),
    "answer of true": ({"prompt": "q", "choices": ["x", "y"], "answer": True}, "field 'answer' is True"),
    "two systems of a pair": (
        {"system": "s", "prompt": [{"role": "system", "content": "t"}, LISTED[0]], "chosen": "r", "rejected": "x"},
        "its turns begin with a system message, and the field 'system' is another",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_row_without_a_shape_is_told_with_its_place_and_the_remedy(fault: str) -> None:
    row, says = FAULTS[fault]
    with pytest.raises(DataError, match=says) as caught:
        conversation({"id": "rows.jsonl:7", **row})
    assert str(caught.value).startswith("rows.jsonl:7: ")


@contextmanager
def suppress_as(kind: type[Exception], begins: str) -> Iterator[None]:
    """Passes over an exception of this kind whose message is right."""
    try:
        yield
    except kind as error:
        if not re.match(begins, str(error)):
            raise


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["user", "human", "assistant", "tool", "function_call"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "from", "value", "text", "score", "train", "weight", "type", "name", "tool_calls"]
            ),
            inner,
        )
    ),
    max_leaves=8,
)
NAMES = sorted({name for row, _ in ROWS.values() for name in row} | {"rejected"})


@given(st.dictionaries(st.sampled_from(NAMES), values, max_size=5))
def test_any_row_is_a_conversation_or_an_error_that_names_it(row: dict[str, Any]) -> None:
    turns = None
    with suppress_as(DataError, r"^rows:1: "):
        turns = conversation({"id": "rows:1", **row})
    if turns is not None:
        assert all(isinstance(turn["content"], str) or turn["tool_calls"] for turn in turns)
        assert "assistant" in {turn["role"] for turn in turns}
