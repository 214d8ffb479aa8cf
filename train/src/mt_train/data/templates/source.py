"""A Jinja template with the names that it may write: its renderings, whole, turn by turn, and watched."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

from mt_core.rows import Message
from mt_train.data.templates.rendering import least_messages, render, render_turns
from mt_train.data.templates.tracing import Turns, generated_spans, has_generation_blocks, trace_turns


@dataclass(frozen=True)
class RenderedText:
    """A conversation as text, and where its first 0, 1, 2 … turns end in it, where one rendering shows that."""

    text: str
    ends: Sequence[int] | None = None


@dataclass
class TemplateSource:
    """The text of a template; ``names`` are special tokens (``bos_token`` …) and functions, and ``name`` is what messages call it."""

    source: str
    names: Mapping[str, Any]
    name: str
    _tails: dict[bool, str] = field(default_factory=dict)

    @cached_property
    def fewest_messages(self) -> int | None:
        """See ``least_messages``."""
        return least_messages(self.source)

    @cached_property
    def says_generated(self) -> bool:
        """Return whether it has ``{% generation %}`` blocks."""
        return has_generation_blocks(self.source)

    def render(self, messages: Sequence[Message], *, speak: bool = False) -> str:
        """See ``rendering.render``."""
        return render(self.source, messages, self.names, name=self.name, speak=speak)

    def write(self, messages: Sequence[Message]) -> RenderedText:
        """The text, with the ends of turns where turns are written one after another."""
        if self.fewest_messages is None:
            return RenderedText(self.render(messages))
        begin, *turns, end = self._turns(messages)
        ends = list(accumulate(map(len, turns), initial=len(begin)))
        return RenderedText("".join([begin, *turns, end]), [len(begin)] * (len(messages) - len(turns)) + ends)

    def tail(self, messages: Sequence[Message], *, speak: bool) -> str:
        """Return the text after the last turn: the same in any conversation, where turns are written one after another."""
        if speak not in self._tails:
            self._tails[speak] = self._turns(messages, speak=speak)[-1]
        return self._tails[speak]

    def _turns(self, messages: Sequence[Message], *, speak: bool = False) -> list[str]:
        return render_turns(self.source, messages, self.names, name=self.name, speak=speak)

    def trace(self, messages: Sequence[Message], text: str, trained: Collection[int]) -> Turns | None:
        """See ``trace_turns``."""
        return trace_turns(self.source, messages, self.names, text, name=self.name, trained=trained)

    def generated_spans(self, messages: Sequence[Message]) -> list[tuple[int, int]]:
        """See ``generated_spans``."""
        return generated_spans(self.source, messages, self.names, name=self.name)
