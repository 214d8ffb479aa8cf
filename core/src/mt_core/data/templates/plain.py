"""Conversations without a chat format: what was said, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mt_core.data.spelled import text_encoder
from mt_core.data.templates.additions import Additions, trained_turns
from mt_core.data.templates.tools import refuse_tools
from mt_core.protocols import Encoded, Message, Tokenizer


class PlainTemplate:
    """Begin, what was said, and an end after each turn of the assistant. Nothing is put between turns."""

    stop_text = None

    def __init__(self, tokenizer: Tokenizer, additions: Additions, train_on: str) -> None:
        self._tokenizer, self._additions, self._train_on = tokenizer, additions, train_on
        self._encode = text_encoder(tokenizer)
        self.additions = additions.keys
        self.stop_ids = () if tokenizer.eos_id is None else (tokenizer.eos_id,)

    def encode(self, messages: Sequence[Message]) -> Encoded:
        """See ``Template``."""
        refuse_tools(messages, "plain", lambda need: False)
        messages = self._additions.put(messages)
        written = _Written([] if self._tokenizer.bos_id is None else [self._tokenizer.bos_id])
        waiting: list[_Said] = []
        for message, is_trained in zip(messages, trained_turns(messages, self._train_on), strict=True):
            said = _Said(message["content"], is_trained, message.get("weight", 1.0) if is_trained else 1.0)
            if message["role"] == "assistant":
                self._answer(written, waiting, said)
                waiting = []
            elif waiting and (waiting[-1].trained, waiting[-1].weight) == (said.trained, said.weight):
                waiting[-1] = _Said(waiting[-1].text + said.text, said.trained, said.weight)
            else:
                waiting.append(said)
        for said in waiting:
            written.add(self._encode(said.text), said)
        return written.encoded()

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """See ``Template``."""
        return self.encode(messages).ids

    def _answer(self, written: _Written, waiting: Sequence[_Said], answer: _Said) -> None:
        *earlier, context = waiting or [_Said("", False, 1.0)]
        for said in earlier:
            written.add(self._encode(said.text), said)
        before, after = self._boundary(context.text, answer.text)
        written.add(before, context)
        written.add([*after, *(self.stop_ids if after else ())], answer)

    def _boundary(self, prompt: str, response: str) -> tuple[list[int], list[int]]:
        """Ids of the prompt and of the response.

        The prompt's ids are those that generation will see, where it stands alone; a token that straddles the boundary
        would show the model a context that never comes, and leave the start of the response without loss. So the
        response is tokenised as a continuation, with its natural ids (``▁yes`` after ``Answer:``, no second space), where
        that leaves the prompt's ids as they are, and alone where the tokenizer would merge across the boundary.
        """
        context_ids = self._encode(prompt)
        joint_ids = self._encode(prompt + response)
        if joint_ids[: len(context_ids)] == context_ids:
            return context_ids, joint_ids[len(context_ids) :]
        return context_ids, self._encode(response)


@dataclass(frozen=True)
class _Said:
    """A stretch of text whose tokens are all trained on, or none, and how much each counts."""

    text: str
    trained: bool
    weight: float


@dataclass
class _Written:
    """Ids so far; the token that begins a text has nothing before it, and is never predicted."""

    ids: list[int]
    trained: list[bool] = field(init=False)
    weights: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.trained, self.weights = [False] * len(self.ids), [1.0] * len(self.ids)

    def add(self, ids: Sequence[int], said: _Said) -> None:
        self.ids += ids
        self.trained += [said.trained] * len(ids)
        self.weights += [said.weight] * len(ids)

    def encoded(self) -> Encoded:
        weighted = any(weight != 1.0 for weight in self.weights)
        return Encoded(self.ids, self.trained, self.weights if weighted else None)
