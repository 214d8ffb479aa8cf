"""Conversations as a Jinja template writes them; spans of characters decide which tokens are trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from datetime import date
from functools import cached_property
from typing import Any

from mt_core.errors import DataError
from mt_core.protocols import Tokenizer
from mt_core.rows import Encoded, Message
from mt_train.data.templates.additions import Additions
from mt_train.data.templates.notation import SAID, Notation, TokenSpans
from mt_train.data.templates.source import TemplateSource
from mt_train.data.templates.spans import Span, trained_spans
from mt_train.data.templates.tools import PROBE, PROBES, refuse_tools
from mt_train.data.texts import texts_in


class ChatTemplate:
    """A Jinja template with a tokenizer. ``begins`` puts the token that begins a text where the template writes none.

    Without ``tools`` it has no turns for them, whatever it makes of roles that it does not know. ``day`` is today for it, where given.
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
        media: bool = False,
        day: date | None = None,
    ) -> None:
        self._tokenizer, self._train_on, self._name = tokenizer, train_on, name
        self._notation = Notation(tokenizer, media=media)
        today = {} if day is None else {"strftime_now": day.strftime}
        self._source = TemplateSource(source, {**self._notation.names, **today}, name)
        self._begins = begins or not self._notation.is_native
        self._writes: dict[str, bool] = {} if tools else dict.fromkeys(PROBES, False)
        self._additions = additions
        self.additions = additions.keys

    def of_today(self) -> ChatTemplate:
        """See ``DatedTemplate``."""
        other = copy(self)
        other._source = replace(self._source, names=self._notation.names)
        return other

    def encode(self, messages: Sequence[Message]) -> Encoded:
        """See ``Template``.

        A token is trained on when one of its characters is in a trained span (``trained_spans``), as ``return_assistant_tokens_mask`` of
        transformers has it.
        """
        return self.encode_many([messages])[0]

    def encode_many(self, conversations: Sequence[Sequence[Message]]) -> list[Encoded]:
        """See ``ManyConversations``."""
        prepared = [self._prepare(messages) for messages in conversations]
        for messages in prepared:
            self._refuse_stops(messages)
        written = [self._source.write(messages) for messages in prepared]
        pairs = zip(prepared, written, strict=True)
        spans = [trained_spans(self._source, messages, each, self._train_on) for messages, each in pairs]
        readings = self._notation.read([each.text for each in written])
        return [self._encode(*each) for each in zip(readings, spans, strict=True)]

    def _encode(self, reading: TokenSpans, spans: Sequence[Span]) -> Encoded:
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
        ids = self._notation.encode(self._source.render(self._prepare(messages), speak=True))
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
        _, found, after = self._source.render(self._prepare(asked)).rpartition(PROBE)
        return after.strip() if found else ""

    def _prepare(self, messages: Sequence[Message]) -> list[Message]:
        refuse_tools(messages, self._name, self._can_write)
        return self._notation.mark_spelled(self._additions.put(messages))

    def _can_write(self, need: str) -> bool:
        """Return whether the template writes such turns; where it fails with the probe, the row will show."""
        if need not in self._writes:
            try:
                self._writes[need] = PROBE in self._source.render(PROBES[need])
            except DataError:
                self._writes[need] = True
        return self._writes[need]

    def _lead(self, ids: Sequence[int]) -> list[int]:
        bos = self._tokenizer.bos_id
        return [] if bos is None or not self._begins or list(ids[:1]) == [bos] else [bos]

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


def own_source(tokenizer: Tokenizer) -> str:
    """The tokenizer's chat template. Raises ``DataError`` when it has none."""
    template: Any = tokenizer.chat_template
    if isinstance(template, Mapping):  # transformers keeps several under names
        template = template.get("default")
    if not isinstance(template, str):
        raise DataError(
            "the tokenizer has no chat template, so nothing says how turns are written down; give one by name (chatml; alpaca for "
            "instructions; plain for nothing between turns) or as a Jinja file: --data.template to train, --chat-template to ask a model"
        )
    return template
