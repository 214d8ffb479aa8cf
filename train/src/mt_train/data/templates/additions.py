"""Additions of a run to every conversation, and the turns that are trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mt_core.rows import Message


@dataclass(frozen=True)
class Additions:
    """``data.system`` for conversations without one; ``data.prefix`` and ``data.postfix`` around each user turn."""

    system: str | None = None
    prefix: str = ""
    postfix: str = ""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that are set."""
        return tuple(f"data.{name}" for name in ("system", "prefix", "postfix") if getattr(self, name))

    def put(self, messages: Sequence[Message]) -> list[Message]:
        """The conversation with them."""
        if not (self.system or self.prefix or self.postfix):
            return list(messages)
        found = [self._around(message) if message["role"] == "user" else message for message in messages]
        if self.system and (not found or found[0]["role"] != "system"):
            tools = {"tools": found[0]["tools"]} if found and "tools" in found[0] else {}  # the first turn has them
            return [{"role": "system", "content": self.system, **tools}, *found]
        return found

    def _around(self, message: Message) -> Message:
        if not self.prefix and not self.postfix:
            return message
        more = {"input": message["input"] + self.postfix} if "input" in message else {}
        return {**message, "content": self.prefix + message["content"] + self.postfix, **more}


def trained_turns(messages: Sequence[Message], train_on: str) -> list[bool]:
    """Return which turns are trained on; what a tool gave is none. What a message says itself (``train``) wins over ``data.train_on``."""
    places = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    spoken = {place for place, message in enumerate(messages) if message["role"] != "tool"}
    wanted = spoken if train_on == "all" else set(places[-1:] if train_on == "last" else places)
    return [message.get("train", place in wanted) for place, message in enumerate(messages)]
