"""Conversations as a Jinja template writes them; spans of characters decide which tokens are trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

from mt_core.data.templates.additions import Additions, trained_turns
from mt_core.data.templates.notation import SAID, Notation, Reading
from mt_core.data.templates.rendering import least_messages, render, render_turns
from mt_core.data.templates.tools import PROBE, PROBES, refuse_tools
from mt_core.data.tools import texts_in
from mt_core.errors import DataError
from mt_core.protocols import Encoded, Message, Tokenizer


@dataclass(frozen=True)
class _Span:
    """Characters that are trained on, and how much they count."""

    start: int
    end: int
    weight: float


@dataclass(frozen=True)
class _Written:
    """A conversation as text, and where its first 0, 1, 2 … turns end in it, where one rendering shows that."""

    text: str
    ends: Sequence[int] | None = None


class ChatTemplate:
    """A Jinja template with a tokenizer. ``begins`` puts the token that begins a text where the template writes none.

    Without ``tools`` it has no turns for them, whatever it makes of roles that it does not know.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        source: str,
        additions: Additions,
        train_on: str,
        *,
        name: str = "of the tokenizer",
        begins: bool = False,
        tools: bool = True,
    ) -> None:
        self._tokenizer, self._source, self._train_on, self._name = tokenizer, source, train_on, name
        self._notation = Notation(tokenizer)
        self._begins = begins or not self._notation.is_native
        self._writes: dict[str, bool] = {} if tools else dict.fromkeys(PROBES, False)
        self._additions = additions
        self._tails: dict[bool, str] = {}
        self.additions = additions.keys

    def encode(self, messages: Sequence[Message]) -> Encoded:
        """See ``Template``.

        A token is trained on when one of its characters is in a trained span, as ``return_assistant_tokens_mask`` of transformers
        has it. The span of an assistant's turn goes from the end of what a prompt for it would be to the end of its stop.
        """
        return self.encode_many([messages])[0]

    def encode_many(self, conversations: Sequence[Sequence[Message]]) -> list[Encoded]:
        """See ``ManyConversations``."""
        prepared = [self._prepared(messages) for messages in conversations]
        for messages in prepared:
            self._refuse_stops(messages)
        written = [self._written(messages) for messages in prepared]
        spans = [self._spans(messages, each) for messages, each in zip(prepared, written, strict=True)]
        readings = self._notation.read([each.text for each in written])
        return [self._encoded(*each) for each in zip(readings, spans, strict=True)]

    def _encoded(self, reading: Reading, spans: Sequence[_Span]) -> Encoded:
        lead = self._lead(reading.ids)
        ids = [*lead, *reading.ids] if lead else reading.ids
        trained = [False] * len(ids)
        weights = [1.0] * len(ids) if any(span.weight != 1.0 for span in spans) else None
        for span in spans:
            first, last = (len(lead) + place for place in reading.tokens_in(span.start, span.end))
            trained[first:last] = [True] * (last - first)
            if weights is not None:
                weights[first:last] = [span.weight] * (last - first)
        return Encoded(ids, trained, weights)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """See ``Template``."""
        ids = self._notation.encode(self._render(self._prepared(messages), speak=True))
        return [*self._lead(ids), *ids]

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """See ``Template``: the first special token after an answer."""
        return () if self._stop_id is None else (self._stop_id,)

    @cached_property
    def _stop_id(self) -> int | None:
        return self._notation.first_special(self._stop)

    @cached_property
    def stop_text(self) -> str | None:
        """See ``Template``: what comes after an answer, where no special token does."""
        return self._stop if self._stop and self._stop_id is None else None

    @cached_property
    def _stop(self) -> str:
        asked = [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": PROBE}]
        _, found, after = self._render(self._prepared(asked)).rpartition(PROBE)
        return after.strip() if found else ""

    def _prepared(self, messages: Sequence[Message]) -> list[Message]:
        refuse_tools(messages, self._name, self._can_write)
        return self._notation.guarded(self._additions.put(messages))

    def _can_write(self, need: str) -> bool:
        """Whether the template writes such turns; where it fails with the probe, the row will show."""
        if need not in self._writes:
            try:
                self._writes[need] = PROBE in self._render(PROBES[need])
            except DataError:
                self._writes[need] = True
        return self._writes[need]

    def _lead(self, ids: Sequence[int]) -> list[int]:
        bos = self._tokenizer.bos_id
        return [] if bos is None or not self._begins or list(ids[:1]) == [bos] else [bos]

    def _render(self, messages: Sequence[Message], *, speak: bool = False) -> str:
        return render(self._source, messages, self._notation.names, name=self._name, speak=speak)

    def _written(self, messages: Sequence[Message]) -> _Written:
        if self._least is None:
            return _Written(self._render(messages))
        begin, *turns, end = self._turns(messages)
        ends = list(accumulate(map(len, turns), initial=len(begin)))
        return _Written("".join([begin, *turns, end]), [len(begin)] * (len(messages) - len(turns)) + ends)

    def _turns(self, messages: Sequence[Message], *, speak: bool = False) -> list[str]:
        return render_turns(self._source, messages, self._notation.names, name=self._name, speak=speak)

    def _tail(self, messages: Sequence[Message], *, speak: bool) -> str:
        """What comes after the last turn: the same in any conversation, where turns are written one after another."""
        if speak not in self._tails:
            self._tails[speak] = self._turns(messages, speak=speak)[-1]
        return self._tails[speak]

    @cached_property
    def _least(self) -> int | None:
        return least_messages(self._source)

    def _refuse_stops(self, messages: Sequence[Message]) -> None:
        if not self._stop:
            raise DataError(
                f"the chat template {self._name} writes nothing after an answer, so a model would never learn to stop; "
                "write {{ eos_token }} after the assistant's content, or choose another with --data.template"
            )
        stop = self.stop_text
        if stop is None:
            return
        for number, message in enumerate(messages, 1):
            said = texts_in({key: message[key] for key in SAID if key in message})
            if any(stop in text for text in said):
                raise DataError(
                    f"turn {number} contains {stop!r}, which ends a turn in the chat template {self._name} and is no single token of "
                    "this tokenizer; take it out, or choose a template that ends turns with {{ eos_token }}"
                )

    def _spans(self, messages: Sequence[Message], written: _Written) -> list[_Span]:
        text, wanted = written.text, trained_turns(messages, self._train_on)
        if all(wanted) and not any("weight" in message for message in messages):
            return [_Span(0, len(text), 1.0)]
        last, spans = len(messages) - 1, []
        for place in (place for place, is_wanted in enumerate(wanted) if is_wanted):
            start = self._length(messages, place, written, place, speak=messages[place]["role"] == "assistant")
            end = len(text) if place == last else self._length(messages, place + 1, written, place)
            end = start + len(text[start:end].rstrip())  # what follows a stop is never generated
            spans.append(_Span(start, end, messages[place].get("weight", 1.0)))
        return spans

    def _length(
        self, messages: Sequence[Message], count: int, written: _Written, place: int, *, speak: bool = False
    ) -> int:
        """How many characters of the text the first messages are. Raises ``DataError`` where it does not begin with them."""
        if written.ends is not None and count >= (self._least or 0):
            known, rendered = written.ends[count], self._tail(messages, speak=speak)
        else:
            known, rendered = 0, self._render(messages[:count], speak=speak) if count or speak else ""
        if not written.text.startswith(rendered, known):
            if speak and count and written.text.startswith(self._render(messages[:count])):
                raise DataError(
                    f"turn {place + 1} does not begin as a prompt for it ends in the chat template {self._name}:"
                    f" {self._render(messages[:count], speak=True)[-30:]!r}. Let it begin so, or choose another with --data.template"
                )
            raise DataError(
                f"turn {place + 1} cannot be told from the others: the chat template {self._name} writes a conversation differently when "
                "more turns follow, so what is trained would not be what is asked later. Train on the last turn only "
                "(--data.train-on last), or choose another with --data.template"
            )
        return known + len(rendered)


def own_source(tokenizer: Tokenizer) -> str:
    """The tokenizer's chat template. Raises ``DataError`` when it has none."""
    template: Any = tokenizer.chat_template
    if isinstance(template, Mapping):  # transformers keeps several under names
        template = template.get("default")
    if not isinstance(template, str):
        raise DataError(
            "the tokenizer has no chat template, which says how turns are written down; choose one with --data.template (chatml, "
            "alpaca for instructions, plain for nothing between turns, a Jinja file …), or for a trained model with --chat-template FILE"
        )
    return template
