"""Conversations without a chat format: what was said, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from mt_core.data.text_ids import begin_ids, continuation_encoder, text_encoder
from mt_core.protocols import ManyTexts, Tokenizer
from mt_core.rows import MEDIA_MARK, Encoded, Message
from mt_train.data.templates.additions import Additions, trained_turns
from mt_train.data.templates.notation import MEDIA_ID
from mt_train.data.templates.tools import refuse_tools


class PlainTemplate:
    """Begin, what was said, and an end after each turn of the assistant. Nothing is put between turns."""

    stop_text = None

    def __init__(self, tokenizer: Tokenizer, additions: Additions, train_on: str, *, media: bool = False) -> None:
        self._tokenizer, self._additions, self._train_on, self._media = tokenizer, additions, train_on, media
        self._encode, self._continued = text_encoder(tokenizer), continuation_encoder(tokenizer)
        if media:
            self._encode, self._continued = mark_encoders(self._encode, self._continued)
        self._begin = begin_ids(tokenizer)
        self.additions = additions.keys
        self.stop_ids = () if tokenizer.eos_id is None else (tokenizer.eos_id,)

    def encode(self, messages: Sequence[Message]) -> Encoded:
        """See ``Template``."""
        return self.encode_many([messages])[0]

    def encode_many(self, conversations: Sequence[Sequence[Message]]) -> list[Encoded]:
        """See ``ManyConversations``."""
        stretches = [self._stretches(messages) for messages in conversations]
        known = self._encode_texts(
            list(dict.fromkeys(text for each in stretches for said in each for text in _texts_to_encode(said)))
        )
        return [self._assemble(each, known).encode() for each in stretches]

    def _stretches(self, messages: Sequence[Message]) -> list[_Stretch]:
        """The conversation as stretches of text, and pairs of an answer and what stands in front of it."""
        refuse_tools(messages, "plain", lambda need: False)
        messages = self._additions.put(messages)
        found: list[_Stretch] = []
        waiting: list[_Piece] = []
        for message, is_trained in zip(messages, trained_turns(messages, self._train_on), strict=True):
            said = _Piece(message["content"], is_trained, message.get("weight", 1.0) if is_trained else 1.0)
            if message["role"] == "assistant":
                *earlier, context = waiting or [_Piece("", False, 1.0)]
                found += [*earlier, (context, said)]
                waiting = []
            elif waiting and (waiting[-1].trained, waiting[-1].weight) == (said.trained, said.weight):
                waiting[-1] = _Piece(waiting[-1].text + said.text, said.trained, said.weight)
            else:
                waiting.append(said)
        return [*found, *waiting]

    def _encode_texts(self, texts: Sequence[str]) -> dict[str, list[int]]:
        """The ids of texts."""
        if isinstance(self._tokenizer, ManyTexts) and not self._media:
            return dict(zip(texts, self._tokenizer.encode_many(texts), strict=True))
        return {text: self._encode(text) for text in texts}

    def _assemble(self, stretches: Sequence[_Stretch], known: Mapping[str, list[int]]) -> _Ids:
        written, goes_on = _Ids(list(self._begin)), False
        for said in stretches:
            if isinstance(said, _Piece):
                written.add(self._continued(said.text) if goes_on else known[said.text], said)
                goes_on = True
                continue
            context, answer = said
            before, after = self._boundary(context.text, answer.text, known, goes_on=goes_on)
            written.add(before, context)
            written.add([*after, *(self.stop_ids if after else ())], answer)
            goes_on = not self.stop_ids
        return written

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """See ``Template``."""
        return self.encode(messages).ids

    def _boundary(
        self, prompt: str, response: str, known: Mapping[str, list[int]], *, goes_on: bool
    ) -> tuple[list[int], list[int]]:
        """Return the ids of the prompt and of the response; ``goes_on`` where the prompt itself follows other text.

        The prompt's ids are those that generation will see, where it stands alone; a token that straddles the boundary
        would show the model a context that never comes, and leave the start of the response without loss. So the
        response has the ids that the whole text gives it where these leave the prompt's as they are, and those that it has after
        another text (no second space) where the tokenizer would merge across the boundary.
        """
        if goes_on:
            context_ids, joint_ids = self._continued(prompt), self._continued(prompt + response)
        else:
            context_ids, joint_ids = known[prompt], known[prompt + response]
        if joint_ids[: len(context_ids)] == context_ids:
            return context_ids, joint_ids[len(context_ids) :]
        return context_ids, self._continued(response)


Encode = Callable[[str], list[int]]


def mark_encoders(encode: Encode, continued: Encode) -> tuple[Encode, Encode]:
    """Return both encoders for texts with marks: each is ``MEDIA_ID``, and what follows it goes on after another text."""

    def split(first: Encode, text: str) -> list[int]:
        begin, *others = text.split(MEDIA_MARK)
        ids = first(begin) if begin or not others else []
        for other in others:
            ids = [*ids, MEDIA_ID, *(continued(other) if other else [])]
        return ids

    return partial(split, encode), partial(split, continued)


@dataclass(frozen=True)
class _Piece:
    """A stretch of text whose tokens are all trained on, or none, and how much each counts."""

    text: str
    trained: bool
    weight: float


_Stretch = _Piece | tuple[_Piece, _Piece]


def _texts_to_encode(said: _Stretch) -> tuple[str, ...]:
    """The texts whose ids are needed."""
    if isinstance(said, _Piece):
        return (said.text,)
    context, answer = said
    return context.text, context.text + answer.text


@dataclass
class _Ids:
    """Ids so far; the token that begins a text has nothing before it, and is never predicted."""

    ids: list[int]
    trained: list[bool] = field(init=False)
    weights: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.trained, self.weights = [False] * len(self.ids), [1.0] * len(self.ids)

    def add(self, ids: Sequence[int], said: _Piece) -> None:
        self.ids += ids
        self.trained += [said.trained] * len(ids)
        self.weights += [said.weight] * len(ids)

    def encode(self) -> Encoded:
        weighted = any(weight != 1.0 for weight in self.weights)
        return Encoded(self.ids, self.trained, self.weights if weighted else None)
