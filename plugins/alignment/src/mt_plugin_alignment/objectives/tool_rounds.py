"""Answers in rounds: the model calls tools, reads what they gave, and goes on, until it calls none.

The tokens that it reads are no tokens of its answer: nothing is learned from them, and rewards and lengths do not count them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from mt_core import DataError, UsageError

from ..samplers.answers import write_answers
from ..tool_file import OPTION, ToolFile, ToolResult

if TYPE_CHECKING:
    from mt_core import Message, Template, Tokenizer
    from mt_core.generation import GenerationConfig
    from mt_train import Policy
    from mt_train.generation import Call, CallReader

    from ..samplers.base import Completion, Sampler
    from ..stopwatch import Stopwatch
    from .answer_options import AnswerOptions

T = TypeVar("T")
FINISHED = ("eos", "stop")
"""Ends of a turn that is whole, and whose calls are made."""
UNREADABLE = "Error: the result has a character that is not written down here"


@dataclass
class Written:
    """An answer on its way. ``ids`` are the model's own tokens; ``read`` has those that it read before one of these, by its place."""

    prompt: Sequence[int]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] | None = field(default_factory=list)
    read: dict[int, list[int]] = field(default_factory=dict)
    turns: list[Message] = field(default_factory=list)
    text: str = ""
    finish: str = ""
    calls: int = 0
    failed_calls: int = 0

    @property
    def whole(self) -> list[int]:
        """Return the prompt and all that follows it."""
        return [*self.prompt, *with_read(self.ids, self.read)]

    @property
    def length(self) -> int:
        """Return the tokens after the prompt, with those that were read."""
        return len(self.ids) + sum(map(len, self.read.values()))

    def take(self, drawn: Completion) -> None:
        """Add what the model wrote in a round."""
        self.ids += drawn.ids
        self.text, self.finish = drawn.text, drawn.finish
        known = None if drawn.logprobs is None or self.logprobs is None else [*self.logprobs, *drawn.logprobs]
        self.logprobs = known


def with_read(own: Sequence[T], read: Mapping[int, Sequence[T]]) -> list[T]:
    """Return what belongs to the tokens of an answer with what belongs to those that were read, each in its place."""
    if not read:
        return list(own)
    places = sorted(read)
    begins, ends = [0, *places], [*places, len(own)]
    pieces = [[*(read[begin] if begin else ()), *own[begin:end]] for begin, end in zip(begins, ends, strict=True)]
    return [each for piece in pieces for each in piece]


class ToolRounds:
    """Has a sampler write answers in rounds, and makes the calls between them."""

    def __init__(self, options: AnswerOptions, template: Template, tokenizer: Tokenizer) -> None:
        """Raise ``UsageError`` for a file that has no tools, and a chat template whose calls are not read."""
        assert options.tools is not None, "asked for tools"
        self._tools = ToolFile(options.tools, timeout=options.tool_timeout)
        self._rounds = options.tool_rounds
        self._template, self._tokenizer = template, tokenizer
        self._reader = _reader_of(template, tokenizer)

    def declare(self, turns: Sequence[Message], row_id: str) -> list[Message]:
        """Return the turns of a prompt with the tools that may be called; those that its row has stay. Raises ``DataError``."""
        first = turns[0]
        if all(turn.get("raw") for turn in turns):
            raise DataError(
                f"{row_id}: the prompt is plain text, and tools are called in conversations. Write it as turns:"
                ' {"messages": [{"role": "user", "content": "…"}]}, or leave objective.tools out.'
            )
        return list(turns) if first.get("tools") else [{**first, "tools": self._tools.schemas}, *turns[1:]]

    def write(
        self,
        sampler: Sampler | None,
        policy: Policy,
        prompts: Sequence[Sequence[int]],
        config: GenerationConfig,
        watch: Stopwatch,
    ) -> list[Written]:
        """Return an answer to each prompt (ids). Every rank asks the same, and gets the same; tools are called on rank 0."""
        answers = [Written(prompt) for prompt in prompts]
        waiting = answers
        for number in range(self._rounds + 1):
            with watch.measure("write"):
                self._write_round(sampler, policy, waiting, config, number)
            called = [(each, self._read_turn(each)) for each in waiting]
            called = [(each, calls) for each, calls in called if calls]
            if number == self._rounds or not called:
                break
            with watch.measure("tools"):
                results = policy.once(partial(self._call, [calls for _, calls in called]))
            waiting = [
                each
                for (each, _), found in zip(called, results, strict=True)
                if self._go_on(each, [ToolResult(*one) for one in found], config.max_new_tokens)
            ]
            if not waiting:
                break
        return answers

    def _write_round(
        self,
        sampler: Sampler | None,
        policy: Policy,
        answers: Sequence[Written],
        config: GenerationConfig,
        number: int,
    ) -> None:
        """Have the next turn of each answer written, as far as there is room for it."""
        rooms = [config.max_new_tokens - each.length for each in answers]
        seed = config.seed if number == 0 else int(np.random.SeedSequence([config.seed, number]).generate_state(1)[0])
        wish = replace(config, max_new_tokens=max(rooms), seed=seed)
        drawn = write_answers(sampler, policy, [each.whole for each in answers], wish, rooms)
        for answer, room, completion in zip(answers, rooms, drawn, strict=True):
            answer.take(completion if room == wish.max_new_tokens else self._cut(completion, room))

    def _cut(self, drawn: Completion, room: int) -> Completion:
        """Return a turn of at most so many tokens, its end token among them: a row may have room for no more."""
        if len(drawn.ids) <= room:
            return drawn
        ids, logprobs = list(drawn.ids)[:room], drawn.logprobs
        return replace(
            drawn,
            ids=ids,
            text=self._tokenizer.decode(ids),
            finish="length",
            logprobs=None if logprobs is None else logprobs[:room],
        )

    def _read_turn(self, answer: Written) -> list[Call]:
        """Return the calls of the turn that was just written, which joins the answer's turns.

        One that was cut calls nothing, nor does one that the template could not write, as of two calls where it takes one.
        """
        said, calls = self._reader.split(answer.text)
        first = answer.calls + 1
        written = [
            {
                "id": f"call{number:05d}",  # nine letters and digits, as Mistral's templates demand
                "type": "function",
                "function": {"name": each.name, "arguments": json.loads(each.arguments)},
            }
            for number, each in enumerate(calls, first)
        ]
        if not calls or answer.finish not in FINISHED or not self._can_write(written):
            answer.turns.append({"role": "assistant", "content": answer.text})
            return []
        answer.calls += len(calls)
        answer.turns.append({"role": "assistant", "content": said.strip() or None, "tool_calls": written})
        return list(calls)

    def _can_write(self, calls: Sequence[Mapping[str, Any]]) -> bool:
        try:
            self._template.encode(self._standing_for(calls))
        except DataError:
            return False
        return True

    def _standing_for(self, calls: Sequence[Mapping[str, Any]]) -> list[Message]:
        """Return a conversation whose last turn has calls of these names, without arguments, and says nothing."""
        bare = [{**each, "function": {"name": each["function"]["name"], "arguments": {}}} for each in calls]
        return [
            {"role": "user", "content": "?", "tools": self._tools.schemas},
            {"role": "assistant", "content": None, "tool_calls": bare},
        ]

    def _call(self, turns: Sequence[Sequence[Call]]) -> list[list[tuple[str, bool]]]:
        """Return for each turn what its calls gave, as plain data."""
        found = [[self._tools.call(each.name, json.loads(each.arguments)) for each in calls] for calls in turns]
        return [[(each.text, each.failed) for each in results] for results in found]

    def _go_on(self, answer: Written, results: Sequence[ToolResult], most: int) -> bool:
        """Let an answer read what its calls gave, and return whether there is room for what the model says to that."""
        calls = answer.turns[-1]["tool_calls"]
        try:
            gave = _turns_of(calls, results)
            ids = self._ids_of_results(calls, gave)
        except DataError:  # the model may read no such character, and the tool is not the run's to repair
            results = [ToolResult(UNREADABLE, failed=True)] * len(calls)
            gave = _turns_of(calls, results)
            ids = self._ids_of_results(calls, gave)
        answer.failed_calls += sum(each.failed for each in results)
        if answer.length + len(ids) >= most:
            answer.finish = "length"
            return False
        answer.turns += gave
        answer.read[len(answer.ids)] = ids
        return True

    def _ids_of_results(self, calls: Sequence[Mapping[str, Any]], gave: Sequence[Message]) -> list[int]:
        """Return what stands between the end of a turn that calls and the beginning of the next one.

        It is the same whatever the turn says, so that another one stands for it: what the model writes may be what no template takes.
        Raises ``DataError`` for a result that the template cannot write, and ``UsageError`` for a template that writes a turn in another
        way where results follow it.
        """
        asked = self._standing_for(calls)
        before = self._template.encode(asked)
        end = max(place for place, trained in enumerate(before.trained) if trained) + 1
        whole = self._template.prompt([*asked, *gave])
        if list(whole[:end]) != list(before.ids[:end]):
            raise UsageError(
                "the chat template writes a turn that calls a tool in another way where the tool's result follows, so that the model cannot"
                " go on behind its own tokens. Take another template (--data.template qwen2_5, llama3_1, mistral_v3), or leave"
                f" {OPTION} out"
            )
        return list(whole[end:])


def _reader_of(template: Template, tokenizer: Tokenizer) -> CallReader:
    from mt_train.generation import find_call_reader

    reader = find_call_reader(template, tokenizer)
    if reader is None:
        raise UsageError(
            f"{OPTION}: the chat template writes no calls of tools that are read here (<tool_call>, <function=…>, [TOOL_CALLS] or bare"
            " JSON). Take one that does (--data.template qwen2_5, qwen3, llama3_1, mistral_v3)"
        )
    if others := set(reader.end_ids) - set(template.stop_ids):
        raise UsageError(
            f"{OPTION}: the chat template ends a turn that calls with token {min(others)}, and others with {list(template.stop_ids)}, so"
            " that the model would write on behind its call. Take a template that ends both alike"
        )
    return reader


def _turns_of(calls: Sequence[Mapping[str, Any]], results: Sequence[ToolResult]) -> list[Message]:
    """Return a turn for each result."""
    return [
        {"role": "tool", "name": call["function"]["name"], "tool_call_id": call["id"], "content": result.text}
        for call, result in zip(calls, results, strict=True)
    ]


def tool_record(answer: Written) -> dict[str, Any]:
    """Return what a record has of the tools that an answer called: how often, and where it did its turns, and the tokens that it read."""
    counts = {"calls": answer.calls, "failed_calls": answer.failed_calls}
    if not answer.calls:
        return counts
    return counts | {"turns": answer.turns, "read": [[place, ids] for place, ids in sorted(answer.read.items())]}
