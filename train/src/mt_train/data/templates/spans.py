"""Spans of a rendered conversation that are trained on.

The span of an assistant's turn goes from the end of what a prompt for it would be to the end of its stop. Where a beginning of the
conversation is not written as the whole begins, the template is watched (``tracing``); where it says itself what is generated
(``{% generation %}``), that is taken, as ``return_assistant_tokens_mask`` of transformers takes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile

from mt_core.errors import DataError
from mt_core.rows import Message
from mt_train.data.templates.additions import trained_turns
from mt_train.data.templates.source import RenderedText, TemplateSource
from mt_train.data.templates.spelled_text import show
from mt_train.data.templates.tools import PROBE
from mt_train.data.templates.tracing import Turns

_LONGEST_HEADER = 2000
"""Characters of what a template writes before an answer."""


@dataclass(frozen=True)
class Span:
    """Characters that are trained on, and how much they count."""

    start: int
    end: int
    weight: float


def trained_spans(
    source: TemplateSource, messages: Sequence[Message], written: RenderedText, train_on: str
) -> list[Span]:
    """The spans of a conversation. Raises ``DataError`` where a turn cannot be told from the others, or loses what it says."""
    wanted = trained_turns(messages, train_on)
    speaks_alone = train_on != "all" and all(message["role"] == "assistant" for message in messages)
    if all(wanted) and not speaks_alone and not any("weight" in message for message in messages):
        return [Span(0, len(written.text), 1.0)]
    places = [place for place, is_wanted in enumerate(wanted) if is_wanted]
    return list(_Conversation(source, messages, written, places, of_all=train_on == "all").spans())


class _Conversation:
    """One conversation with the turns of it that are trained on; ``of_all`` where those of everybody are."""

    def __init__(
        self,
        source: TemplateSource,
        messages: Sequence[Message],
        written: RenderedText,
        places: Sequence[int],
        *,
        of_all: bool,
    ) -> None:
        self._source, self._messages, self._written, self._places = source, messages, written, places
        self._of_all = of_all
        self._text = written.text

    def spans(self) -> Iterator[Span]:
        """Yield the spans in the order of the turns."""
        if self._are_marked_alone:
            text = "".join(self._text[start:end] for start, end in self._blocks)
            for place in self._places:
                self._refuse_loss(place, text)
            yield from (Span(start, end, 1.0) for start, end in self._blocks)
            return
        for place in self._places:
            message = self._messages[place]
            found = self._generation_spans(place) if message["role"] == "assistant" else None
            if found == [] and not self._of_all and "train" not in message:
                continue  # the template says that this answer is not learned
            spans = found or [self._span(place)]
            if message["role"] == "assistant":
                self._refuse_loss(place, "".join(self._text[start:end] for start, end in spans))
            yield from (Span(start, end, message.get("weight", 1.0)) for start, end in spans)

    @property
    def _are_marked_alone(self) -> bool:
        """Return whether every answer is trained on, and only the marks of the template say where one is."""
        answers = [place for place, message in enumerate(self._messages) if message["role"] == "assistant"]
        wishes = any("train" in message or "weight" in message for message in self._messages)
        if not self._source.says_generated or wishes or self._places != answers:
            return False
        return self._turns is None or any(self._turns.region(place) is None for place in answers)

    def _generation_spans(self, place: int) -> list[tuple[int, int]] | None:
        """Return the spans that the template itself marks, where it does."""
        if not self._source.says_generated or self._turns is None:
            return None
        region = self._turns.region(place)
        return None if region is None else [each for each in self._blocks if region[0] <= each[0] < region[1]]

    @cached_property
    def _blocks(self) -> list[tuple[int, int]]:
        return self._source.generated_spans(self._messages)

    @cached_property
    def _turns(self) -> Turns | None:
        return self._source.trace(self._messages, self._text, self._places)

    def _span(self, place: int) -> tuple[int, int]:
        speaks = self._messages[place]["role"] == "assistant"
        start = self._length(place, speak=speaks)
        end = len(self._text) if place == len(self._messages) - 1 else self._length(place + 1)
        if start is None or end is None:
            region = self._region(place)
            start = self._behind_header(place, *region) if start is None else start
            end = region[1] if end is None else end
        return start, start + len(self._text[start:end].rstrip())  # what follows a stop is never generated

    def _length(self, count: int, *, speak: bool = False) -> int | None:
        """Return how many characters of the text the first messages are; ``None`` where it does not begin with them."""
        text, ends, messages = self._text, self._written.ends, self._messages
        rendered: str | None
        if ends is not None and count >= (self._source.fewest_messages or 0):
            known, rendered = ends[count], self._source.tail(messages, speak=speak)
        elif not count and speak:
            known, rendered = 0, self._begin
        else:
            known, rendered = 0, self._source.render(messages[:count], speak=speak) if count else ""
        return known + len(rendered) if rendered is not None and text.startswith(rendered, known) else None

    @cached_property
    def _begin(self) -> str | None:
        """A prompt without any message, for an answer that comes first; ``None`` where the template looks at the first message."""
        try:
            return self._source.render([], speak=True)
        except DataError:
            return None

    def _prompt(self, messages: Sequence[Message]) -> str:
        """Return a prompt for an answer after ``messages``, or what the template writes behind a question where it needs one."""
        if messages:
            return self._source.render(messages, speak=True)
        if self._begin is not None:
            return self._begin
        asked: list[Message] = [{"role": "user", "content": PROBE}]
        return self._source.render(asked, speak=True).removeprefix(self._source.render(asked))

    def _region(self, place: int) -> tuple[int, int]:
        """Return where a turn stands that the prefix does not show. Raises ``DataError`` where it is written with less than it says."""
        region = self._turns.region(place) if self._turns is not None else None
        if region is None and len(self._messages) == 1:
            return 0, len(self._text)
        if region is None or not _is_said(self._messages[place], self._text[slice(*region)]):
            raise DataError(
                f"turn {place + 1} cannot be told from the others: the chat template {self._source.name} writes a conversation"
                " differently when more turns follow, so what is trained would not be what is asked later. Train on the last turn"
                " only (--data.train-on last), or choose another with --data.template"
            )
        return region

    def _behind_header(self, place: int, start: int, end: int) -> int:
        """Return where an answer begins: behind what its turn has in common with a prompt for it."""
        messages, turn = self._messages[:place], self._text[start:end]
        if self._messages[place]["role"] != "assistant":
            return start
        prompt = self._prompt(messages)
        sizes = range(min(len(prompt), len(turn), _LONGEST_HEADER), 0, -1)
        if size := next((size for size in sizes if prompt.endswith(turn[:size])), 0):
            return start + size
        before = self._source.render(messages) if messages else ""
        header = prompt[len(before) :] if prompt.startswith(before) else ""
        alike = zip(header, turn, self._other_turn(messages), strict=False)
        return start + sum(1 for _ in takewhile(lambda chars: len(set(chars)) == 1, alike))

    def _other_turn(self, messages: Sequence[Message]) -> str:
        """The turn of another answer, so that a header is not taken to go on where this one goes on like it."""
        asked: list[Message] = [*messages, {"role": "assistant", "content": PROBE}]
        text = self._source.render(asked)
        turns = self._source.trace(asked, text, [len(messages)])
        region = turns.region(len(messages)) if turns is not None else None
        return "" if region is None else text[slice(*region)]

    def _refuse_loss(self, place: int, text: str) -> None:
        """Raise ``DataError`` for thoughts that are to be learned, and that the template leaves out."""
        message = self._messages[place]
        if message.get("tool_calls") and not _is_said(message, text):
            raise DataError(
                f"turn {place + 1} calls a tool and says something beside it, which the chat template {self._source.name} leaves out;"
                " take out either, or choose another with --data.template"
            )
        thoughts = [message.get("reasoning_content") or "", _thoughts(message.get("content") or "")]
        if not all(show(each.strip()) in show(text) for each in thoughts):
            raise DataError(
                f"turn {place + 1} has thoughts (in <think>, or as reasoning_content) that the chat template {self._source.name} leaves"
                " out there, so they would not be learned. Train on the last turn only (--data.train-on last) where it writes that"
                " one's, choose a template that keeps them (--data.template deepseek_r1, qwen3, or a Jinja file), or take them out"
            )


_CLOSE = "</think>"


def _thoughts(content: str) -> str:
    """Return the thoughts: what stands before ``</think>``."""
    before, found, _ = content.rpartition(_CLOSE)
    return before.split("<think>")[-1] if found else ""


def _is_said(message: Message, text: str) -> bool:
    """Return whether the text has what a turn says, without its thoughts."""
    content = message.get("content") or ""
    return show(content.rpartition(_CLOSE)[-1].strip()) in show(text)
