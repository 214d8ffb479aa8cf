"""Files of prompts: bad lines by place, texts in order, and an interrupted file that goes on."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mt_core.data.shapes import conversation
from mt_core.errors import DataError, OutputError, UsageError
from mt_core.generation import GenerationConfig, SamplingRules
from mt_tools.generation.answers import answer
from mt_tools.generation.generate import generate
from mt_tools.generation.media import NO_MEDIA, mark_row
from mt_tools.generation.output import Output, settings_file
from mt_tools.generation.progress import EVERY_SECONDS, Progress
from mt_tools.generation.rows import read_rows
from mt_train.generation.loaded_model import LoadedModel

WISHES = GenerationConfig(rules=SamplingRules(top_p=0.9), max_new_tokens=6, seed=3)
SETTINGS = {"seed": 3, "stop": ("a",)}


def write_rows(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


BAD = {
    "no JSON": ("The", 'write an object such as {"prompt": "…"} on each line'),
    "text for a prompt": ('{"text": "x"}', "needs prompt or messages, and one of them only; it has text"),
    "no object": ('["x"]', "a line is an object"),
    "no prompt": ('{"text_": "x"}', "needs prompt or messages, and one of them only; it has text_"),
    "both": ('{"prompt": "x", "messages": []}', "one of them only; it has prompt, messages"),
    "empty prompt": ('{"prompt": ""}', "prompt must be a text that is not empty, got ''"),
    "prompt of numbers": ('{"prompt": 3}', "prompt must be a text that is not empty, got 3"),
    "no turns": ('{"messages": []}', "at least one turn, got []"),
    "a system beside a text": (
        '{"prompt": "x", "system": "Be brief."}',
        "system beside prompt, a plain text that goes",
    ),
    "half a turn": ('{"messages": [{"role": "user"}]}', "turn 1 of messages must be"),
    "bad id": ('{"prompt": "x", "id": 1.5}', "id must be a text or a whole number, got 1.5"),
    "id that is a boolean": ('{"prompt": "x", "id": true}', "id must be a text or a whole number, got True"),
    "taken id": ('{"prompt": "x", "id": "a"}', "id 'a' is also that of line 1"),
    "taken line number": ('{"prompt": "x", "id": 2}', "id 2 is also that of line 2"),
    "taken key": ('{"prompt": "x", "text": "y"}', "has text, which the output writes itself"),
    "system that is no text": (
        '{"messages": [{"role": "user", "content": "x"}], "system": 3}',
        "system must be a text, got 3",
    ),
    "two systems": (
        '{"messages": [{"role": "system", "content": "x"}], "system": "y"}',
        "messages begins with a system message, and system is another; keep one of them",
    ),
    "call without a name": (
        '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{}]}]}',
        "turn 2 of messages, call 1 has no name of a function",
    ),
    "tools that are none": (
        '{"messages": [{"role": "user", "content": "x"}], "tools": "hammer"}',
        "tools must be a list of objects, or JSON text of one, got 'hammer'",
    ),
    "key twice": ('{"prompt": "x", "prompt": "y"}', "key 'prompt' stands twice in one object"),
    "no number": ('{"prompt": "x", "score": NaN}', "NaN is not JSON"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_line_is_named_with_its_place(bad: str, tmp_path: Path) -> None:
    content, says = BAD[bad]
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "fine", "id": "a"}\n{"prompt": "fine"}\n' + content + "\n")
    with pytest.raises(DataError) as caught:
        read_rows(file)
    assert says in str(caught.value)
    assert str(caught.value).startswith(f"{file}:3: ")


def test_several_bad_lines_come_in_one_message(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read_rows(write_rows(tmp_path / "p", [{"prompt": "x"}, *([3] * 7)]))
    assert len(str(caught.value).splitlines()) == 6
    assert str(caught.value).endswith("and 2 more")


def test_a_file_without_prompts_or_in_another_encoding_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "p"
    with pytest.raises(DataError, match="No such file"):
        read_rows(file)
    file.write_text("\n \n")
    with pytest.raises(DataError, match="has no line with a prompt"):
        read_rows(file)
    file.write_bytes(b'{"prompt": "\xff"}\n')
    with pytest.raises(DataError, match=r"p:1: not UTF-8 \(byte 12"):
        read_rows(file)


def answer_rows(loaded: LoadedModel, prompts: Path, out: Path, *, batch_size: int = 2, **keywords: Any) -> list[str]:
    said: list[str] = []
    rows = read_rows(prompts)
    output = Output(out, rows, SETTINGS, **{"overwrite": False, "say": said.append, **keywords})
    numbers = {row.id: number for number, row in enumerate(rows)}
    pending = {numbers[row.id]: row for row in output.pending}
    answer(
        loaded, output, pending, WISHES, file=prompts, batch_size=batch_size, chat_template="{{ messages[0].content }}"
    )
    return said


PROMPTS = [
    {"id": "one", "prompt": "ab", "kind": {"x": [1]}, "media": "print"},
    {"prompt": "é" * 9},
    {"messages": [{"role": "user", "content": "c"}]},
    {"id": 9, "prompt": "dddd"},
    {"prompt": "e"},
]


def test_each_prompt_gets_a_line_in_order_with_all_its_keys(loaded: LoadedModel, tmp_path: Path) -> None:
    prompts, out = write_rows(tmp_path / "p.jsonl", PROMPTS), tmp_path / "out.jsonl"
    answer_rows(loaded, prompts, out)
    found = lines(out)
    assert [row["id"] for row in found] == ["one", 2, 3, 9, 5]
    assert found[0]["kind"] == {"x": [1]}
    assert found[2]["messages"] == PROMPTS[2]["messages"]
    texts = ["ab", "é" * 9, "c", "dddd", "e"]
    alone = generate(loaded, texts, GenerationConfig(rules=WISHES.rules, max_new_tokens=6, seed=3), batch_size=1)
    expected = [(text.text, text.finish, len(text.ids)) for text in alone]
    # the third is a conversation; the byte tokenizer begins both with the same token
    assert [(row["text"], row["finish"], row["tokens"]) for row in found] == expected


def test_a_conversation_has_the_system_message_and_the_tools_of_its_row(tmp_path: Path) -> None:
    """As a row of training, and ``apply_chat_template(messages, tools=tools)``; tools may be JSON text, as Parquet has them."""
    asked = [{"role": "user", "content": "Where?"}]
    tools = [{"type": "function", "function": {"name": "where", "parameters": {"type": "object"}}}]
    system = {"role": "system", "content": "Be brief."}
    rows = [
        {"messages": asked, "system": "Be brief.", "tools": tools},
        {"messages": [system, *asked], "tools": json.dumps(tools)},
        {"messages": asked, "tools": None, "system": None},
        {"messages": asked, "system": ""},
    ]
    read = read_rows(write_rows(tmp_path / "p.jsonl", rows))
    found = [mark_row(row.content, NO_MEDIA, tmp_path) for row in read]
    assert found == [[{**system, "tools": tools}, *asked]] * 2 + [asked] * 2
    assert [set(row.content) for row in read] == [{"id", *row} for row in rows], "they are passed on as they are"


def test_calls_in_a_conversation_are_read_as_those_of_training(tmp_path: Path) -> None:
    """OpenAI writes arguments as JSON text, and no content beside a call."""
    call = {"id": "1", "type": "function", "function": {"name": "where", "arguments": '{"x": 1}'}}
    rows = [{"role": "user", "content": "Where?"}, {"role": "assistant", "tool_calls": [call]}]
    rows += [{"role": "tool", "content": "Ulm", "tool_call_id": "1"}]
    (row,) = read_rows(write_rows(tmp_path / "p.jsonl", [{"messages": rows}]))
    found = mark_row(row.content, NO_MEDIA, tmp_path)
    assert found == conversation({"id": "1", "messages": rows})
    assert row.content == {"id": 1, "messages": rows}


@pytest.mark.parametrize("kept", [0, 1, 3, 5])
def test_an_interrupted_file_ends_as_if_it_had_not_been(loaded: LoadedModel, tmp_path: Path, kept: int) -> None:
    prompts, whole, out = write_rows(tmp_path / "p.jsonl", PROMPTS), tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    answer_rows(loaded, prompts, whole)
    answer_rows(loaded, prompts, out, batch_size=3)
    content = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(b"".join(content[:kept]) + (content[kept][:-5] if kept < 5 else b""))
    said = answer_rows(loaded, prompts, out, batch_size=1)
    assert out.read_bytes() == whole.read_bytes()
    assert any("was not written to its end" in text for text in said) == (kept < 5)
    assert any(f"{kept} of 5 prompts are in" in text for text in said) == (kept > 0)


def test_a_cut_last_line_that_is_valid_json_is_cut_off_too(loaded: LoadedModel, tmp_path: Path) -> None:
    prompts, out = write_rows(tmp_path / "p.jsonl", PROMPTS), tmp_path / "out.jsonl"
    answer_rows(loaded, prompts, out)
    whole = out.read_bytes()
    out.write_bytes(whole[:-1])
    answer_rows(loaded, prompts, out)
    assert out.read_bytes() == whole


def open_output(out: Path, prompts: Path, settings: dict[str, Any] = SETTINGS, *, overwrite: bool = False) -> Output:
    return Output(out, read_rows(prompts), settings, overwrite=overwrite, say=lambda _: None)


def test_what_cannot_be_continued_is_refused_and_left_alone(loaded: LoadedModel, tmp_path: Path) -> None:
    prompts, out = write_rows(tmp_path / "p.jsonl", PROMPTS), tmp_path / "out.jsonl"
    answer_rows(loaded, prompts, out)
    before = out.read_bytes()
    with pytest.raises(
        UsageError, match=r"other settings: seed was 3 and is 4; stop was \['a'\] and is None.*--overwrite"
    ):
        open_output(out, prompts, {"seed": 4})
    with pytest.raises(UsageError, match="line 1 has id 'one', which is not among the prompts"):
        open_output(out, write_rows(tmp_path / "q", PROMPTS[1:]))
    with pytest.raises(UsageError, match="line 1: the prompt with id 'one' was another one then"):
        open_output(out, write_rows(tmp_path / "q", [{**PROMPTS[0], "prompt": "other"}, *PROMPTS[1:]]))
    settings_file(out).unlink()
    with pytest.raises(UsageError, match="which says how it was made, cannot be read"):
        open_output(out, prompts)
    assert out.read_bytes() == before
    again = open_output(out, prompts, overwrite=True)
    assert len(again.pending) == 5
    assert out.read_bytes() == before, "nothing is lost before there is something to put in its place"
    again.append([{"id": "one"}])
    assert out.read_text() == '{"id": "one"}\n'
    assert json.loads(settings_file(out).read_text())["seed"] == 3


def test_a_damaged_or_foreign_line_is_refused_by_place(loaded: LoadedModel, tmp_path: Path) -> None:
    prompts, out = write_rows(tmp_path / "p.jsonl", PROMPTS), tmp_path / "out.jsonl"
    open_output(out, prompts).append([])
    out.write_text("{broken\n")
    with pytest.raises(DataError, match=r"out\.jsonl:1 is damaged"):
        open_output(out, prompts)
    out.write_text('{"id": "one"}\n')
    with pytest.raises(DataError, match=r"out\.jsonl:1 is no line that mt-generate wrote"):
        open_output(out, prompts)
    with pytest.raises(OutputError, match="does not exist; create it"):
        open_output(tmp_path / "none" / "out", prompts)


def test_a_prompt_that_does_not_fit_is_told_before_the_first_text(loaded: LoadedModel, tmp_path: Path) -> None:
    prompts, out = write_rows(tmp_path / "p.jsonl", [{"prompt": "a"}, {"prompt": "x" * 200}]), tmp_path / "out.jsonl"
    with pytest.raises(DataError, match=r"p\.jsonl:2: the prompt has 201 tokens"):
        answer_rows(loaded, prompts, out)
    assert not out.exists()


def test_half_a_character_in_another_key_is_passed_through(loaded: LoadedModel, tmp_path: Path) -> None:
    prompts, out = write_rows(tmp_path / "p.jsonl", [{"prompt": "a", "note": "\ud800"}]), tmp_path / "out.jsonl"
    answer_rows(loaded, prompts, out)
    assert lines(out)[0]["note"] == "\ud800"
    assert "1 of 1 prompts" in answer_rows(loaded, prompts, out)[0]
    with pytest.raises(DataError, match=r"q:1: .*lone surrogate"):
        answer_rows(loaded, write_rows(tmp_path / "q", [{"prompt": "\ud800"}]), tmp_path / "other")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_progress_says_a_line_now_and_then_and_at_the_end() -> None:
    stream, clock = io.StringIO(), Clock()
    with Progress(10, stream=stream, clock=clock) as progress:
        for _ in range(4):
            clock.now += EVERY_SECONDS / 2
            progress.advance(2, 50)
        clock.now += 1
        progress.advance(2, 50)
    assert stream.getvalue().splitlines() == [
        "prompts 4/10 | 10 tokens/s | 15s left",
        "prompts 8/10 | 10 tokens/s | 5s left",
        "prompts 10/10 | 12 tokens/s | 0s left",
    ]


def test_progress_is_a_bar_on_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with Progress(3, stream=stream) as progress:
        progress.advance(3, 9)
    assert "3/3" in stream.getvalue()
    assert "\x1b[" in stream.getvalue()
