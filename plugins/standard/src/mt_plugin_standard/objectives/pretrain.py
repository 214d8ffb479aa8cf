"""Next-token prediction on whole texts, and on whole conversations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mt_core import (
    DataError,
    Encoded,
    ManyTexts,
    Rejected,
    Row,
    Sample,
    begin_ids,
    conversation,
    is_conversation,
    media_of,
    text_encoder,
    text_field,
)
from mt_core.media import EncodesMedia, MediaPart, MediaSpan
from mt_core.nn import TokenObjective

from .tokenised import tokenised_sample

if TYPE_CHECKING:
    from mt_core.protocols import Template, Tokenizer


class Pretrain(TokenObjective):
    """Rows ``{"text"}`` become begin + text + end, all trained: what the tokenizer puts in front, and its end token where it has one.

    A conversation is written down by the run's template, and all of it is trained too.
    """

    def __init__(self, tokenizer: Tokenizer, template: Template, **figures: Any) -> None:
        super().__init__(pad_id=tokenizer.pad_id or 0, **figures)
        self._tokenizer, self._template, self._encode = tokenizer, template, text_encoder(tokenizer)
        self._begin, self._end = begin_ids(tokenizer), [] if tokenizer.eos_id is None else [tokenizer.eos_id]

    def encode(self, row: Row) -> Sample | Rejected:
        """The sample of a row; an empty text is rejected. Raises ``DataError`` when a field is missing or no text."""
        if (sample := tokenised_sample(row)) is not None:
            return sample
        if row.get("text") is None and is_conversation(row):
            encoded = self._conversation(row)
            return _sample(encoded.ids, row["id"], encoded.media)
        text = text_field(row, "text")
        if media := media_of(row, "text"):
            return self._with_media(text, media["media"]).sample(row["id"])
        return self._text(text, self._encode(text), row["id"])

    def encode_many(self, rows: Sequence[Row]) -> list[Sample | Rejected]:
        """Return what ``encode`` gives for each row: the texts at once where all of them are texts."""
        if not isinstance(self._tokenizer, ManyTexts) or not all(map(_is_text, rows)):
            return [self.encode(row) for row in rows]
        texts = [text_field(row, "text") for row in rows]
        encoded = self._tokenizer.encode_many(texts)
        return [self._text(text, ids, row["id"]) for text, ids, row in zip(texts, encoded, rows, strict=True)]

    def _text(self, text: str, ids: list[int], row_id: str) -> Sample | Rejected:
        if not text:
            return Rejected("'text' is empty", row_id)
        if self._template.additions:
            raise DataError(
                f"{row_id}: {self._template.additions[0]} is put into conversations, and this row is a text; leave it out, or train on "
                "rows with a prompt"
            )
        return _sample([*self._begin, *ids, *self._end], row_id)

    def _with_media(self, text: str, parts: Sequence[MediaPart]) -> Encoded:
        assert isinstance(self._template, EncodesMedia), "the template of a run with encoders does"
        return self._template.encode_text(text, parts, begin=self._begin, end=self._end)

    def _conversation(self, row: Row) -> Encoded:
        turns = conversation(row)
        if any("train" in turn or "weight" in turn for turn in turns):
            raise DataError(
                f"{row['id']}: its turns say how they are trained (train, weight, a label, or answers in the prompt), and pretrain trains"
                " on all of a conversation; choose --objective sft, with --data.train-on all if you like, or take that out of the row"
            )
        return self._template.encode(turns)


def _is_text(row: Row) -> bool:
    return row.get("text") is not None and row.get("input_ids") is None and not media_of(row, "text")


def _sample(ids: list[int], row_id: str, media: Sequence[MediaSpan] = ()) -> Sample | Rejected:
    """The sample of ids that are all trained on, but for those of media."""
    if len(ids) < 2:
        return Rejected("no token is left to train on after the first", row_id)
    trained = [True] * len(ids)
    for span in media:
        trained[span.start : span.start + span.tokens] = [False] * span.tokens
    return Sample(ids, trained, row_id, media=media)
