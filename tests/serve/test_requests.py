"""Whatever a request says is honoured, or refused by name."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from openai.types import completion_create_params as text_params
from openai.types.chat import completion_create_params as chat_params
from served import Server

MESSAGES = [{"role": "user", "content": "hi"}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
WRONG: list[Any] = ["", "x", -1, 1.5, 10**30, True, [], {}, [1], {"a": 1}, [None], "é" * 999, 1e300, -0.1]
"""Values for every field; some of them are fine for some."""
FINE = {
    "echo": [True],
    "frequency_penalty": [-1, 1.5, -0.1],
    "logit_bias": [{}],
    "logprobs": [True],
    "parallel_tool_calls": [True],
    "presence_penalty": [-1, 1.5, -0.1],
    "prompt": ["x", [1]],
    "seed": [-1],
    "stop": ["x", "é" * 999, []],
    "stream": [True],
    "stream_options": [{}],
    "temperature": [1.5],
    "tools": [[]],
}
NEUTRAL: dict[str, Any] = {
    "modalities": ["text"],
    "parallel_tool_calls": True,
    "response_format": {"type": "text"},
    "service_tier": "auto",
    "store": False,
    "best_of": 1,
    "n": 1,
    "stream": False,
    "logprobs": None,
    "user": None,
}


def asked(path: str, **fields: Any) -> dict[str, Any]:
    own = {"messages": MESSAGES} if path == CHAT else {"prompt": "hi"}
    most = {} if path == CHAT and "max_completion_tokens" in fields else {"max_tokens": 2}
    return {"model": "tiny", **own, **most, **fields}


def fields_of(path: str) -> list[str]:
    """Every field that the client's own types know."""
    params: Any = (
        chat_params.CompletionCreateParamsNonStreaming
        if path == CHAT
        else text_params.CompletionCreateParamsNonStreaming
    )
    return sorted(params.__annotations__.keys() | params.__mro__[0].__annotations__.keys() | _inherited(params))


def _inherited(params: Any) -> set[str]:
    return {name for base in getattr(params, "__orig_bases__", ()) for name in getattr(base, "__annotations__", {})}


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_every_field_of_openais_requests_is_known(server: Server, path: str) -> None:
    names = fields_of(path)
    assert {"model", "seed", "stop", "logit_bias", "stream_options"} <= set(names)
    for name in names:
        status, answer, _ = server.ask("POST", path, asked(path, **{name: {"wrong": ["kind"]}}))
        assert (status, answer["error"]["param"]) == (400, name), answer
        assert "there is no field" not in answer["error"]["message"], name


def test_wrong_values_are_refused_by_name(server: Server) -> None:
    """More than two hundred bodies, none of which may end in anything but an answer or a 400 that names its field."""
    seen = refused = 0
    taken: list[tuple[str, Any]] = []
    for path in (CHAT, TEXT):
        for name in fields_of(path):
            for value in WRONG:
                status, answer, _ = server.ask("POST", path, asked(path, **{name: value}))
                seen += 1
                if status == 404 and name == "model":
                    continue
                assert status in (200, 400), (path, name, value, answer)
                if status == 400:
                    refused += 1
                    named = answer["error"]["param"]
                    assert named is not None
                    assert named.startswith(name) or name in answer["error"]["message"], answer
                else:
                    taken.append((name, value))
    assert (seen > 700, refused > 600) == (True, True), (seen, refused)
    assert [pair for pair in taken if pair[1] not in FINE.get(pair[0], ())] == []


def test_null_is_a_field_that_is_not_there(server: Server) -> None:
    for path in (CHAT, TEXT):
        nothing = dict.fromkeys(set(fields_of(path)) - {"model", "messages", "prompt", "max_tokens"})
        assert server.ask("POST", path, asked(path, **nothing))[0] == 200


def test_fields_that_say_what_happens_anyway_are_taken(server: Server) -> None:
    for path in (CHAT, TEXT):
        neutral = {name: value for name, value in NEUTRAL.items() if name in fields_of(path)}
        assert server.ask("POST", path, asked(path, **neutral))[0] == 200


BODIES = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"1",
    b'"x"',
    b"\xff\xfe",
    b'{"model": "tiny", "prompt": "\xff"}',
    b'{"model": "tiny", "prompt": "\\ud800"}',
    b'{"model": "\\udfff", "prompt": "x"}',
    b'{"model": "tiny", "prompt": "x", "prompt": "y"}',
    b'{"model": "tiny", "prompt": "x", "temperature": NaN}',
    b'{"model": "tiny", "prompt": "x", "temperature": Infinity}',
    b'{"model": "tiny", "prompt": "x", "temperature": 1e999}',
    b'{"model": "tiny", "prompt": "x", "seed": ' + b"9" * 5000 + b"}",
    b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    b"[" * 100_000,
    b'{"model": "tiny", "prompt": "x"} trailing',
]


def test_bodies_that_are_no_request_get_a_message(server: Server) -> None:
    for body in BODIES:
        for path in (CHAT, TEXT, "/tokenize"):
            status, answer, _ = server.ask("POST", path, body)
            assert status in (400, 404), body[:80]
            assert answer["error"]["message"]
            assert "Traceback" not in answer["error"]["message"]


def test_damaged_bodies_get_an_answer_or_a_message(server: Server) -> None:
    """Bytes of good requests, changed at random."""
    chance = random.Random(3)
    good = [json.dumps(asked(path, stop=["a"], seed=3, logit_bias={"7": 1})).encode() for path in (CHAT, TEXT)]
    for number in range(200):
        raw = bytearray(good[number % 2])
        for _ in range(chance.randrange(1, 6)):
            at = chance.randrange(len(raw))
            raw[at : at + chance.randrange(3)] = bytes([chance.choice(b'{}[],:"0xa\x00\xff')])
        status, answer, _ = server.ask("POST", (CHAT, TEXT)[number % 2], bytes(raw))
        assert status in (200, 400, 404), raw
        assert status == 200 or answer["error"]["message"]


MESSAGE_FAULTS: list[tuple[Any, str]] = [
    ([], "messages"),
    ("hi", "messages"),
    ([1], "messages[0]"),
    ([{"content": "x"}], "messages[0]"),
    ([{"role": "user"}], "messages[0].content"),
    ([{"role": "user", "content": 5}], "messages[0].content"),
    ([{"role": "user", "content": []}], "messages[0].content"),
    ([{"role": "nobody", "content": "x"}], "messages[0]"),
    ([{"role": "user", "content": "x", "name": "Ann"}], "messages[0].name"),
    ([{"role": "user", "content": "x", "images": ["/etc/passwd"]}], "messages[0].images"),
    ([{"role": "user", "content": "x"}, {"role": "system", "content": "y"}], "messages[1]"),
    ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0]"),
    (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}],
        "messages[0].content[0]",
    ),
    (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y"}}]}],
        "messages[0].content[0]",
    ),
    ([{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}], "messages[0].content[0]"),
    ([{"role": "user", "content": [{"type": "file", "file": {"file_id": "x"}}]}], "messages[0].content[0]"),
    ([{"role": "assistant", "content": None, "tool_calls": [{"id": "x"}]}], "messages[0].tool_calls[0]"),
    (
        [{"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": "f", "arguments": "[1"}}]}],
        "messages[0].tool_calls[0].function.arguments",
    ),
    ([{"role": "assistant", "content": "x", "audio": {"id": "y"}}], "messages[0].audio"),
    ([{"role": "tool", "content": "x", "tool_call_id": 4}], "messages[0].tool_call_id"),
]


@pytest.mark.parametrize(
    ("messages", "named"), MESSAGE_FAULTS, ids=[each[1] + str(n) for n, each in enumerate(MESSAGE_FAULTS)]
)
def test_a_wrong_message_is_named_and_no_file_is_read(server: Server, messages: Any, named: str) -> None:
    status, answer, _ = server.ask("POST", CHAT, asked(CHAT, messages=messages))
    assert (status, answer["error"]["param"]) == (400, named)
    assert "root:" not in json.dumps(answer)


def test_what_clashes_is_told(server: Server) -> None:
    for path, fields, named in [
        (CHAT, {"top_logprobs": 3}, "top_logprobs"),
        (CHAT, {"stream_options": {"include_usage": True}}, "stream_options"),
        (CHAT, {"max_completion_tokens": 4, "max_tokens": 4}, "max_tokens"),
        (CHAT, {"tool_choice": "auto"}, "tool_choice"),
        (CHAT, {"stream": True, "stream_options": {"more": 1}}, "stream_options.more"),
        (CHAT, {"temprature": 1}, "temprature"),
        (TEXT, {"max_tokens": 0}, "max_tokens"),
        (TEXT, {"best_of": 2}, "best_of"),
        (TEXT, {"choices": ["a"], "stop": "b"}, "stop"),
        (TEXT, {"min_new_tokens": 5}, "min_new_tokens"),
        (TEXT, {"prompt": [999]}, "prompt"),
        (TEXT, {"prompt": ["a", ""]}, "prompt"),
        (TEXT, {"logit_bias": {"259": 1}}, "logit_bias"),
        (TEXT, {"logit_bias": {"1": 101}}, "logit_bias"),
    ]:
        status, answer, _ = server.ask("POST", path, asked(path, **fields))
        assert (status, answer["error"]["param"]) == (400, named), answer


def test_a_message_names_fields_of_the_request_and_values_that_it_takes(server: Server) -> None:
    for path, fields, says in [
        (TEXT, {"min_new_tokens": 5}, "min_new_tokens 5 is above max_tokens 2"),
        (CHAT, {"max_tokens": None, "max_completion_tokens": 2, "min_new_tokens": 5}, "above max_completion_tokens 2"),
        (TEXT, {"choices": ["a long one"]}, "and max_tokens is 2; set it to 11 or more"),
        (CHAT, {"temperature": 1e-5}, "temperature has to be 0, for the likeliest token, or at least 0.001; got 1e-05"),
        (TEXT, {"prompt": ""}, "prompt is empty; give some text to continue, or the id of a token"),
    ]:
        status, answer, _ = server.ask("POST", path, asked(path, **fields))
        assert status == 400
        assert says in answer["error"]["message"]
        assert "max_new_tokens" not in answer["error"]["message"]


def test_texts_are_tokenized_as_the_model_gets_them(server: Server) -> None:
    status, found, _ = server.ask("POST", "/tokenize", {"messages": MESSAGES})
    assert status == 200
    assert found["count"] == len(found["tokens"]) == 53
    assert found["tokens"][0] == 256
    assert found["tokens"].count(256) == 1
    plain = server.ask("POST", "/tokenize", {"prompt": "é", "add_special_tokens": False, "return_token_strs": True})[1]
    assert plain == {"count": 2, "max_model_len": 128, "tokens": [195, 169], "token_strs": ["Ã", "©"]}
    for wrong in ({}, {"prompt": "x", "messages": MESSAGES}, {"prompt": 1}, {"prompt": "x", "more": 1}):
        assert server.ask("POST", "/tokenize", wrong)[0] == 400
