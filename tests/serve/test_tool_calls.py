"""Calls of tools: what each template writes is read back, whatever the arguments, in one piece and letter by letter."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.call_tokenizer import call_tokenizer

from mt_core.errors import DataError
from mt_core.generation import Finish
from mt_plugin_serve.answers import TextAnswer
from mt_plugin_standard.tokenizers.byte import ByteTokenizer
from mt_tools import template_of
from mt_train import LoadedModel
from mt_train.generation import Call, CallReader, TokenOutput, find_call_reader
from mt_train.generation.tool_calls import CALL_FORMATS

READ = ["functionary", "llama3_1", "mistral_v3", "qwen2_5", "qwen3"]
"""Named templates that write calls (docs/conversations.md)."""
NONE = ["chatml", "llama3", "gemma", "zephyr", "vicuna", "alpaca"]

MARKS = "\ufdd0\ufdd1\ufdd2\ufdd3\ufdd4"
"""Noncharacters that templates refuse in a turn."""
letters = st.characters(exclude_categories=["Cs"], exclude_characters=MARKS)
values: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(letters, max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(letters, max_size=4), inner, max_size=3),
    max_leaves=5,
)
arguments = st.dictionaries(st.text(letters, max_size=6), values, max_size=3)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return call_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def template(name: str, tokenizer: Any) -> Any:
    return template_of(LoadedModel(None, tokenizer, 9), name)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NONE)
def test_a_template_without_calls_has_no_reader(name: str, tokenizer: Any) -> None:
    assert find_call_reader(template(name, tokenizer), tokenizer) is None


@pytest.mark.parametrize("name", READ)
def test_what_a_template_writes_is_what_is_read(name: str, tokenizer: Any) -> None:
    own = template(name, tokenizer)
    found = find_call_reader(own, tokenizer)
    assert found is not None
    ends = {token for token in (*own.stop_ids, tokenizer.eos_id, *found.end_ids) if token is not None}

    @settings(max_examples=30)
    @given(arguments)
    def check(given: dict[str, Any]) -> None:
        call = {"id": "call00001", "type": "function", "function": {"name": "look_up", "arguments": given}}
        tool = {"type": "function", "function": {"name": "look_up", "description": "", "parameters": {}}}
        encoded = own.encode(
            [
                {"role": "user", "content": "?", "tools": [tool]},
                {"role": "assistant", "content": "", "tool_calls": [call]},
            ]
        )
        said = [token for token, trained in zip(encoded.ids, encoded.trained, strict=True) if trained]
        assert ends & set(said), "the turn ends where the decoder does"
        text = tokenizer.decode(said)
        calls = found.format.parse(text[found.format.begin(text) :])
        assert [(each.name, json.loads(each.arguments)) for each in calls] == [("look_up", given)]

    check()


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("mark", MARKS)
def test_a_call_with_a_noncharacter_that_templates_use_is_refused(name: str, mark: str, tokenizer: Any) -> None:
    for said in ({mark: None}, {"place": [mark]}, {"place": {"street": f"a{mark}"}}):
        call = {"id": "call00001", "type": "function", "function": {"name": "look_up", "arguments": said}}
        turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        with pytest.raises(DataError, match=r"noncharacter \(U\+FDD0 to U\+FDD4\)"):
            template(name, tokenizer).encode(turns)


def pieces(text: str, form: int, size: int, finish: Finish = "eos") -> tuple[str, list[str], str | None, list[str]]:
    """Content, names of calls, why it ended, and each piece of content, for a text that comes in pieces of ``size`` letters."""
    answer = TextAnswer(ByteTokenizer(), reader=CallReader(CALL_FORMATS[form], ()))
    parts = [text[at : at + size] for at in range(0, len(text), size)] or [""]
    found = [
        answer.take(TokenOutput(0, 65, part, finish=finish if number == len(parts) - 1 else None))
        for number, part in enumerate(parts)
    ]
    shown = [each.text for each in found if each.text]
    return "".join(shown), [call.name for each in found for call in each.calls], found[-1].finish, shown


CALL = '{"name": "f", "arguments": {"a": "</tool_call>"}}'
NO_NUMBERS = [f'<tool_call>{{"name": "f", "arguments": {{"x": {each}}}}}</tool_call>' for each in ("NaN", "1e999")]
TEXTS = [
    (0, f"<tool_call>\n{CALL}\n</tool_call>", "", ["f"]),
    (0, f"\n\n<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>\n", "", ["f", "f"]),
    (0, f"Look: <tool_call>{CALL}</tool_call>", "Look: ", ["f"]),
    (0, f"<tool_call>{CALL}", f"<tool_call>{CALL}", []),
    (0, "<tool_call>no JSON</tool_call>", "<tool_call>no JSON</tool_call>", []),
    *((0, each, each, []) for each in NO_NUMBERS),
    (0, f"<tool_call>{CALL}</tool_call> and more", f"<tool_call>{CALL}</tool_call> and more", []),
    (0, "a < b, and <tool is no call", "a < b, and <tool is no call", []),
    (
        0,
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        [],
    ),
    (1, '<function=f>{"a": 1}</function>', "", ["f"]),
    (2, f"[TOOL_CALLS] [{CALL}, {CALL}]", "", ["f", "f"]),
    (3, '{"name": "f", "parameters": {"a": 1}}', "", ["f"]),
    (3, f" [{CALL}]", "", ["f"]),
    (3, '{"type": "function", "function": "f", "arguments": {"a": 1}}', "", ["f"]),
    (3, '{"type": "function", "function": "f", "parameters": {"a": 1}}', "", ["f"]),
    (3, '{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}', "", ["f"]),
    (3, '{"name": "f", "function": 5}', '{"name": "f", "function": 5}', []),
    (3, '{"name": "f", "function": null}', '{"name": "f", "function": null}', []),
    (3, '{"name": "f", "function": ["f"]}', '{"name": "f", "function": ["f"]}', []),
    (0, '<tool_call>{"function": "f", "arguments": {}}</tool_call>', "", ["f"]),
    (3, '{"answer": 5}', '{"answer": 5}', []),
    (3, '{"name": "Ann", "age": 3}', '{"name": "Ann", "age": 3}', []),
    (3, '[{"name": "Ann"}, {"name": "Bob"}]', '[{"name": "Ann"}, {"name": "Bob"}]', []),
    (0, '<tool_call>{"name": "f"}</tool_call>', "", ["f"]),
    (3, "Plain text {", "Plain text {", []),
]


@pytest.mark.parametrize(("form", "text", "content", "names"), TEXTS, ids=range(len(TEXTS)))
def test_text_and_calls_are_told_apart_however_they_come(form: int, text: str, content: str, names: list[str]) -> None:
    for size in (1, 2, 7, len(text)):
        found, called, finish, _ = pieces(text, form, size)
        assert (found, called, finish) == (content, names, "tool_calls" if names else "stop")


def test_text_before_a_call_does_not_wait_for_the_end() -> None:
    _, _, _, shown = pieces(f"Let me see. <tool_call>{CALL}</tool_call>", 0, 1)
    assert len(shown) == len("Let me see. ")


def test_a_call_that_is_cut_short_is_text() -> None:
    text = f"<tool_call>{CALL}</tool_call>"
    assert pieces(text, 0, 3, "length")[:3] == (text, [], "length")


DEEP = ["[" * 20_000, '{"a":' * 20_000, '{"name": "f", "arguments": {"a": ' + "[" * 20_000 + "]" * 20_000 + "}}"]


@pytest.mark.parametrize("text", DEEP, ids=range(len(DEEP)))
def test_json_that_is_too_deep_is_text(text: str) -> None:
    assert pieces(text, 3, len(text))[:3] == (text, [], "stop")
    call = f"<tool_call>{text}</tool_call>"
    assert pieces(call, 0, len(call))[:3] == (call, [], "stop")


def test_arguments_are_those_beside_the_name_of_a_function() -> None:
    text = '{"type": "function", "function": "f", "arguments": {"a": 1}}'
    assert CALL_FORMATS[3].parse(text) == (Call("f", '{"a": 1}'),)
