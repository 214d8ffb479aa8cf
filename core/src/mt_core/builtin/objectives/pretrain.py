"""Next-token prediction on whole texts, and on whole conversations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mt_core import DataError, Rejected, Row, Sample, conversation, is_conversation, text_field
from mt_core.nn import TokenObjective

from .tokenised import tokenised

if TYPE_CHECKING:
    from mt_core.protocols import Template, Tokenizer


class Pretrain(TokenObjective):
    """Rows ``{"text"}`` become begin + text + end, all trained. Special tokens that the tokenizer lacks are left out.

    A conversation is written down by the run's template, and all of it is trained too.
    """

    def __init__(self, tokenizer: Tokenizer, template: Template) -> None:
        super().__init__(pad_id=tokenizer.pad_id or 0)
        self._tokenizer, self._template = tokenizer, template

    def encode(self, row: Row) -> Sample | Rejected:
        """The sample of a row; an empty text is rejected. Raises ``DataError`` when a field is missing or no text."""
        if (sample := tokenised(row)) is not None:
            return sample
        if "text" not in row and is_conversation(row):
            ids = self._conversation(row)
        elif text := text_field(row, "text"):
            ids = self._text(text, row["id"])
        else:
            return Rejected("'text' is empty", row["id"])
        if len(ids) < 2:
            return Rejected("no token is left to train on after the first", row["id"])
        return Sample(ids, [True] * len(ids), row["id"])

    def _text(self, text: str, row_id: str) -> list[int]:
        if self._template.additions:
            raise DataError(
                f"{row_id}: {self._template.additions[0]} is put into conversations, and this row is a text; leave it out, or train on "
                "rows with a prompt"
            )
        bos, eos = self._tokenizer.bos_id, self._tokenizer.eos_id
        return [*([] if bos is None else [bos]), *self._tokenizer.encode(text), *([] if eos is None else [eos])]

    def _conversation(self, row: Row) -> list[int]:
        try:
            return self._template.encode(conversation(row)).ids
        except DataError as error:
            raise DataError(f"{row['id']}: {error}") from error
