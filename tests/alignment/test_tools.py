"""Answers that call tools: what the model reads is what its template writes, and nothing is learned from it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))

from test_grpo_records import Policy, Scores
from tests.call_tokenizer import call_tokenizer

from mt_core import DataError, UsageError
from mt_core.generation import Generation, GenerationConfig
from mt_plugin_alignment import Answer, Completion, plugin
from mt_plugin_alignment.objectives.online import sample_of
from mt_plugin_alignment.objectives.tool_rounds import with_read
from mt_plugin_alignment.tool_file import ToolFile
from mt_tools import template_of
from mt_train import LoadedModel
from mt_train.data.online import Prompt

TEMPLATES = ["llama3_1", "mistral_v3", "qwen2_5", "qwen3"]
TOOLS = '''
import time

LEFT = []

def price(item: str, count: int = 1) -> float:
    """Tells what an item costs.

    Args:
        item: its name
        count: how many
    """
    LEFT.append(item)
    return {"soup": 4.5, "tea": 2.0}[item] * count

def wait(seconds: float) -> str:
    """Waits.

    Args:
        seconds: how long
    """
    time.sleep(seconds)
    return "done"

def leave() -> str:
    """Ends the process."""
    raise SystemExit(3)

def half() -> str:
    """Gives half a character."""
    return "\\ud800"

def noise() -> str:
    """Gives a text that no template writes."""
    return "a\\ufdd0b"

def _helper(x):
    return x
'''
COMPONENTS = {each.name: each for each in plugin.mt_objectives()}
ROW: dict[str, Any] = {"id": "rows:1", "messages": [{"role": "user", "content": "Price of soup?"}]}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return call_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    path = tmp_path / "tools.py"
    path.write_text(TOOLS)
    return path


def template(name: str, tokenizer: Any) -> Any:
    return template_of(LoadedModel(None, tokenizer, 9), name)  # type: ignore[arg-type]


def call(name: str, number: int = 1, **arguments: Any) -> dict[str, Any]:
    return {"id": f"call{number:05d}", "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*calls: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


class Scripted(Policy):
    """Says the turns of a script to each prompt, one a round, as the template writes them, with the log-probability -0.01·token."""

    def __init__(self, own: Any, tokenizer: Any, *script: Mapping[str, Any], end: str = "eos") -> None:
        super().__init__()
        self.read: list[list[Sequence[int]]] = []
        self._script, self._template, self._tokenizer, self._last = script, own, tokenizer, end

    def generate(
        self, prompts: Sequence[Sequence[int]], config: GenerationConfig, *, weights: str = "live"
    ) -> list[Generation]:
        turn = self._script[len(self.asked)]
        super().generate(prompts, config)
        self.read.append(list(prompts))
        encoded = self._template.encode([{"role": "user", "content": "?"}, turn])
        *ids, end = [token for token, trained in zip(encoded.ids, encoded.trained, strict=True) if trained]
        is_last = len(ids) > config.max_new_tokens or (turn.get("tool_calls") is None and self._last != "eos")
        ids = ids[: config.max_new_tokens]
        logprobs = tuple(-0.01 * token for token in (*ids, *([] if is_last else [end]))) if config.logprobs else ()
        text = self._tokenizer.decode(ids)
        made = Generation(text, tuple(ids), "length" if is_last else "eos", None if is_last else end, logprobs)
        return [made for _ in prompts]


def build(
    name: str, own: Any, tokenizer: Any, tools: Path, score: Any = None, sampler: Any = None, **options: Any
) -> Any:
    component = COMPONENTS[name]
    config = component.config(**{"tools": tools, "max_new_tokens": 900, "prompts": 1, "group": 2, **options})
    rewards = {"one": Scores(score or (lambda answer: float(len(answer.text))))}
    return component.build(config, tokenizer=tokenizer, template=own, rewards=rewards, sampler=sampler)


def collect(made: Any, policy: Policy) -> list[dict[str, Any]]:
    prompt = Prompt(ROW, made.encode(ROW).ids)
    records: list[dict[str, Any]] = made.collect([prompt], policy, seed=3, previous=())
    assert json.loads(json.dumps(records)) == records, "records are plain data"
    return records


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_model_reads_what_its_template_writes_of_the_whole_conversation(
    name: str, tokenizer: Any, tools: Path
) -> None:
    own = template(name, tokenizer)
    turns = [calling(call("price", item="soup")), calling(call("price", 2, item="tea", count=3))]
    policy = Scripted(own, tokenizer, *turns, {"role": "assistant", "content": "4.5 and 6.0"})
    made = build("grpo", own, tokenizer, tools)
    records = collect(made, policy)
    whole = [
        {**ROW["messages"][0], "tools": ToolFile(tools, timeout=9).schemas},
        turns[0],
        {"role": "tool", "name": "price", "tool_call_id": "call00001", "content": "4.5"},
        turns[1],
        {"role": "tool", "name": "price", "tool_call_id": "call00002", "content": "6.0"},
        {"role": "assistant", "content": "4.5 and 6.0"},
    ]
    sample, encoded = sample_of(records[0]), own.encode(whole)
    count = len(sample.ids)
    assert list(sample.ids) == list(encoded.ids)[:count], "to the end of the last turn"
    assert list(sample.trained) == list(encoded.trained)[:count]
    assert not any(encoded.trained[count:])
    assert [(each["calls"], each["failed_calls"]) for each in records] == [(2, 0)] * 2
    *turns, last = records[0]["turns"]
    thought = "<think>\n\n</think>"  # what Qwen 3 writes before it says anything
    assert [each | {"content": (each["content"] or "").removeprefix(thought) or None} for each in turns] == whole[1:-1]
    assert last["content"] == records[0]["text"]
    assert last["content"].removeprefix(thought).strip() == "4.5 and 6.0"
    assert list(sample.ids)[: len(policy.read[2][0])] == list(policy.read[2][0]), (
        "what was read is what is learned from"
    )


def test_values_of_tokens_stand_at_the_tokens_of_the_model(tokenizer: Any, tools: Path) -> None:
    own = template("qwen2_5", tokenizer)
    policy = Scripted(own, tokenizer, calling(call("price", item="tea")), {"role": "assistant", "content": "2.0"})
    made = build("grpo", own, tokenizer, tools, lambda answer: float(answer.group), kl=0.1, importance="token")
    records = collect(made, policy)
    assert all(
        len(each["sampled"]) == len(each["old"]) == len(each["reference"]) == len(each["ids"]) for each in records
    )
    records[0]["rewards"]["one"] = 5.0
    samples, figures = made.learn(records)
    for sample in samples:
        trained = list(sample.trained)
        assert sum(trained) == len(records[0]["ids"]) < len(trained) - len(records[0]["prompt"])
        for name in ("advantage", "importance", "old", "reference"):
            values = list(sample.token_values[name])
            assert all(value == 0 for value, own_token in zip(values, trained, strict=True) if not own_token), name
            assert all(value != 0 for value, own_token in zip(values, trained, strict=True) if own_token), name
    assert figures["tool_calls"] == 1.0
    assert figures["tool_calls_failed"] == 0.0
    assert figures["answer_tokens"] == len(records[0]["ids"])


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.data())
def test_what_was_read_keeps_its_place_and_its_order(own: list[int], data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(1, len(own)), unique=True, max_size=4))
    read = {place: data.draw(st.lists(st.integers(10, 19), max_size=3)) for place in places}
    whole = with_read(own, read)
    assert [each for each in whole if each < 10] == own
    for place, ids in read.items():
        before = place + sum(len(read[other]) for other in read if other < place)
        assert whole[before : before + len(ids)] == ids


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (call("price", item="wine"), "Error: KeyError: 'wine'"),
        (call("price", thing="soup"), "Error: price: missing a required argument: 'item'"),
        (call("weather"), "Error: there is no tool 'weather'; there are price, wait, leave, half, noise"),
        (call("leave"), "Error: leave wanted to end the process (exit code 3)"),
        (call("half"), "Error: the result has a character"),
        (call("_helper", x=1), "Error: there is no tool '_helper'"),
        (call("wait", seconds=30), "Error: wait has given nothing in 0.2 seconds"),
        (call("noise"), "Error: the result has a character that is not written down here"),
    ],
)
def test_a_call_that_fails_is_a_result_that_the_model_reads(
    asked: dict[str, Any], says: str, tokenizer: Any, tools: Path
) -> None:
    own = template("llama3_1", tokenizer)
    policy = Scripted(own, tokenizer, calling(asked), {"role": "assistant", "content": "I do not know."})
    records = collect(build("rejection", own, tokenizer, tools, tool_timeout=0.2), policy)
    assert records[0]["turns"][1]["content"].startswith(says)
    assert (records[0]["calls"], records[0]["failed_calls"]) == (1, 1)
    assert records[0]["text"] == "I do not know."


def test_rounds_and_tokens_end_an_answer(tokenizer: Any, tools: Path) -> None:
    own, again = template("qwen2_5", tokenizer), calling(call("price", item="soup"))
    policy = Scripted(own, tokenizer, again, again, {"role": "assistant", "content": "never said"})
    (record, _) = collect(build("grpo", own, tokenizer, tools, tool_rounds=1), policy)
    assert len(policy.asked) == 2, "a call after the last round is not made"
    assert (record["calls"], len(record["read"]), record["finish"]) == (2, 1, "eos")
    length = len(record["ids"]) // 2 + len(record["read"][0][1])
    for room, rounds, finish in ((length, 1, "length"), (length + 5, 2, "length")):
        policy = Scripted(own, tokenizer, again, again)
        (record, _) = collect(build("grpo", own, tokenizer, tools, max_new_tokens=room), policy)
        assert (len(policy.asked), record["finish"]) == (rounds, finish), (
            "a result without room for an answer is not read"
        )
        assert len(sample_of(record).ids) - len(record["prompt"]) <= room
        assert policy.asked[-1][1].max_new_tokens == (room if rounds == 1 else 5)


def test_answers_of_other_lengths_have_their_own_room(tokenizer: Any, tools: Path) -> None:
    """The first answer may write less than the second in the round that both have."""

    class Two(Scripted):
        def generate(self, prompts: Any, config: Any, *, weights: str = "live") -> list[Generation]:
            long, short = calling(call("price", item="soup", count=1000)), calling(call("price", item="tea"))
            found = []
            for number in range(len(prompts)):
                last = {"role": "assistant", "content": "x" * 400}
                self._script = (long if number == 0 else short, last)
                found.append(super().generate(prompts[:1], config)[0])
                self.asked.pop()
            self.asked.append(([], config))
            return found

    own = template("qwen2_5", tokenizer)
    first, second = collect(build("grpo", own, tokenizer, tools, max_new_tokens=300), Two(own, tokenizer))
    assert first["finish"] == second["finish"] == "length"
    lengths = [len(sample_of(each).ids) - len(each["prompt"]) for each in (first, second)]
    assert lengths == [300, 300]
    assert first["text"] != second["text"]
    assert set(first["text"]) == {"x"}


def test_a_turn_has_room_for_its_end_or_is_cut(tokenizer: Any, tools: Path) -> None:
    """Rows may have room for the longest prompt with ``max_new_tokens`` and for no more; the sampler is told the room of each answer."""

    class Bounded:
        full_support, rooms = True, ()

        def sample_within(self, policy: Any, prompts: Any, config: Any, rooms: Sequence[int]) -> list[Completion]:
            self.rooms = (*self.rooms, list(rooms))
            assert config.max_new_tokens == max(rooms)
            if len(self.rooms) == 1:
                return [ends(own, calling(call("price", item=item))) for item in ("soup", "tea")]
            first = min(rooms)
            return [ends(own, {"role": "assistant", "content": "x" * size}) for size in (first, first)]

        sample = None

    def ends(own: Any, turn: Mapping[str, Any]) -> Completion:
        encoded = own.encode([{"role": "user", "content": "?"}, turn])
        ids = [token for token, trained in zip(encoded.ids, encoded.trained, strict=True) if trained]
        return Completion(tokenizer.decode(ids[:-1]), ids, "eos")

    own, sampler = template("qwen2_5", tokenizer), Bounded()
    short, long = collect(build("grpo", own, tokenizer, tools, sampler=sampler, max_new_tokens=300), Policy())
    lengths = [len(sample_of(each).ids) - len(each["prompt"]) for each in (short, long)]
    assert sampler.rooms[1][1] == sampler.rooms[1][0] + 1
    assert (short["finish"], long["finish"], lengths) == ("length", "eos", [300, 300])


def test_a_turn_that_was_cut_calls_nothing(tokenizer: Any, tools: Path) -> None:
    own = template("qwen2_5", tokenizer)
    said = '<tool_call>\n{"name": "price", "arguments": {"item": "tea"}}\n</tool_call>'
    policy = Scripted(own, tokenizer, {"role": "assistant", "content": said}, end="length")
    (record, _) = collect(build("grpo", own, tokenizer, tools), policy)
    assert (record["calls"], record["text"]) == (0, said)
    assert "read" not in record


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "llama3_1",
            '[{"name": "price", "parameters": {"item": "tea"}}, {"name": "price", "parameters": {"item": "soup"}}]',
        ),
        ("qwen2_5", '<tool_call>\n{"name": "\\ud800", "arguments": {}}\n</tool_call>'),
    ],
)
def test_a_turn_that_the_template_cannot_write_calls_nothing(name: str, said: str, tokenizer: Any, tools: Path) -> None:
    """Two calls where it takes one, or a name that is no text: the model may write anything, and the run goes on."""
    own = template(name, tokenizer)
    (record, _) = collect(
        build("grpo", own, tokenizer, tools), Scripted(own, tokenizer, {"role": "assistant", "content": said})
    )
    assert (record["calls"], record["text"], record["finish"]) == (0, said, "eos")


def test_results_of_several_calls_are_read_together(tokenizer: Any, tools: Path) -> None:
    own = template("qwen2_5", tokenizer)
    turns = [calling(call("price", item="soup"), call("weather", 2)), {"role": "assistant", "content": "4.5"}]
    (record, _) = collect(build("grpo", own, tokenizer, tools), Scripted(own, tokenizer, *turns))
    assert (record["calls"], record["failed_calls"], len(record["read"])) == (2, 1, 1)
    assert [(each["tool_call_id"], each["content"][:5]) for each in record["turns"][1:3]] == [
        ("call00001", "4.5"),
        ("call00002", "Error"),
    ]


def test_a_reward_sees_the_turns(tokenizer: Any, tools: Path) -> None:
    seen: list[Answer] = []

    def score(answer: Answer) -> float:
        seen.append(answer)
        return 1.0

    own = template("qwen2_5", tokenizer)
    policy = Scripted(own, tokenizer, calling(call("price", item="tea")), {"role": "assistant", "content": "2.0"})
    collect(build("grpo", own, tokenizer, tools, score), policy)
    assert [turn["role"] for turn in seen[0].turns] == ["assistant", "tool", "assistant"]
    assert seen[0].text == seen[0].turns[-1]["content"] == "2.0"


def test_a_row_that_names_its_tools_has_no_others(tokenizer: Any, tools: Path) -> None:
    made = build("grpo", template("qwen2_5", tokenizer), tokenizer, tools)
    schema = {"type": "function", "function": {"name": "own_tool", "description": "", "parameters": {}}}
    plain, named = (tokenizer.decode(made.encode({**ROW, **each}).ids) for each in ({}, {"tools": [schema]}))
    assert "price" in plain
    assert "_helper" not in plain
    assert "own_tool" in named
    assert "price" not in named.replace("Price", "")


def test_a_plain_prompt_is_refused(tokenizer: Any, tools: Path) -> None:
    made = build("grpo", template("qwen2_5", tokenizer), tokenizer, tools)
    with pytest.raises(DataError, match=r"rows:2: the prompt is plain text, and tools are called in conversations"):
        made.encode({"id": "rows:2", "prompt": "Price of soup?"})


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (None, r"--objective.tools: .*tools.py does not exist; write a file with a function for each tool"),
        ("x = 1", r"tools.py has no function whose name begins with a letter"),
        ("def f(x: int): return x", r"f cannot be told to the model: .*no docstring.* Give it a docstring"),
        ("def f(x):\n    '''F.\n\n    Args:\n        x: x\n    '''", r"f cannot be told to the model: .*type hint"),
        ("async def f() -> int:\n    '''F.'''", r"f is async, and calls are made one by one"),
        ("1 / 0", r"tools.py does not run: ZeroDivisionError"),
    ],
)
def test_a_file_without_tools_is_refused(source: str | None, says: str, tokenizer: Any, tmp_path: Path) -> None:
    path = tmp_path / "tools.py"
    if source is not None:
        path.write_text(source)
    with pytest.raises(UsageError, match=says):
        build("ppo", template("qwen2_5", tokenizer), tokenizer, path)


def test_a_function_in_another_is_a_tool_by_its_name_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tools.py"
    path.write_text(
        "from functools import cache\n\n\ndef _twice(n: int) -> int:\n"
        '    """Doubles.\n\n    Args:\n        n: a number\n    """\n    return 2 * n\n\n\n'
        "double = cache(_twice)\nagain = _twice\n"
    )
    tools = ToolFile(path, timeout=9)
    assert [each["function"]["name"] for each in tools.schemas] == ["double", "again"]
    assert [tools.call(name, {"n": 3}).text for name in ("double", "again")] == ["6", "6"]


def test_a_template_without_calls_is_refused(tokenizer: Any, tools: Path) -> None:
    with pytest.raises(
        UsageError, match=r"--objective.tools: the chat template writes no calls .*--data.template qwen2_5"
    ):
        build("remax", template("chatml", tokenizer), tokenizer, tools)


def test_a_template_that_ends_calls_with_another_token_is_refused(tokenizer: Any, tools: Path) -> None:
    with pytest.raises(UsageError, match=r"ends a turn that calls with token \d+, and others with \[\d+\]"):
        build("grpo", template("functionary", tokenizer), tokenizer, tools)


def test_options_of_tools_need_tools() -> None:
    with pytest.raises(ValidationError, match="tool_rounds does nothing without tools"):
        COMPONENTS["grpo"].config(tool_rounds=2)
