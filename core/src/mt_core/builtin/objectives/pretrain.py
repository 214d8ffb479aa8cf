"""Next-token prediction on whole texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mt_core import ManyTexts, Rejected, Row, Sample, text_field
from mt_core.nn import TokenObjective

if TYPE_CHECKING:
    from mt_core.protocols import Tokenizer


class Pretrain(TokenObjective):
    """Rows ``{"text"}`` become begin + text + end, all trained. Special tokens that the tokenizer lacks are left out."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(pad_id=tokenizer.pad_id or 0)
        self._tokenizer = tokenizer

    def encode(self, row: Row) -> Sample | Rejected:
        """The sample of a text; an empty one is rejected. Raises ``DataError`` when the field is missing or no text."""
        text = text_field(row, "text")
        return self._sample(text, self._tokenizer.encode(text), row["id"])

    def encode_many(self, rows: Sequence[Row]) -> list[Sample | Rejected]:
        """What ``encode`` gives for each row."""
        if not isinstance(self._tokenizer, ManyTexts):
            return [self.encode(row) for row in rows]
        texts = [text_field(row, "text") for row in rows]
        encoded = self._tokenizer.encode_many(texts)
        return [self._sample(text, ids, row["id"]) for text, ids, row in zip(texts, encoded, rows, strict=True)]

    def _sample(self, text: str, ids: list[int], row_id: str) -> Sample | Rejected:
        if not text:
            return Rejected("'text' is empty", row_id)
        bos, eos = self._tokenizer.bos_id, self._tokenizer.eos_id
        ids = [*([] if bos is None else [bos]), *ids, *([] if eos is None else [eos])]
        if len(ids) < 2:
            return Rejected("no token is left to train on after the first", row_id)
        return Sample(ids, [True] * len(ids), row_id)
