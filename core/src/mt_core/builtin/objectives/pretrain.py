"""Next-token prediction on whole texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mt_core import Rejected, Row, Sample, text_field
from mt_core.nn import TokenObjective

from .tokenised import tokenised

if TYPE_CHECKING:
    from mt_core.protocols import Tokenizer


class Pretrain(TokenObjective):
    """Rows ``{"text"}`` become begin + text + end, all trained. Special tokens that the tokenizer lacks are left out."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(pad_id=tokenizer.pad_id or 0)
        self._tokenizer = tokenizer

    def encode(self, row: Row) -> Sample | Rejected:
        """The sample of a text; an empty one is rejected. Raises ``DataError`` when the field is missing or no text."""
        if (sample := tokenised(row)) is not None:
            return sample
        text = text_field(row, "text")
        if not text:
            return Rejected("'text' is empty", row["id"])
        bos, eos = self._tokenizer.bos_id, self._tokenizer.eos_id
        ids = [*([] if bos is None else [bos]), *self._tokenizer.encode(text), *([] if eos is None else [eos])]
        if len(ids) < 2:
            return Rejected("no token is left to train on after the first", row["id"])
        return Sample(ids, [True] * len(ids), row["id"])
