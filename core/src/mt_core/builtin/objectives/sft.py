"""Supervised fine-tuning: a conversation, with loss on what the template says (the assistant's turns)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mt_core import Rejected, Row, Sample, conversation
from mt_core.nn import TokenObjective

from .tokenised import tokenised

if TYPE_CHECKING:
    from mt_core.protocols import Template, Tokenizer


class SupervisedFineTuning(TokenObjective):
    """Rows that are conversations (``prompt`` and ``response``, ``messages`` …), written down by the run's template."""

    def __init__(self, tokenizer: Tokenizer, template: Template) -> None:
        super().__init__(pad_id=tokenizer.pad_id or 0)
        self._template = template

    def encode(self, row: Row) -> Sample | Rejected:
        """The sample of a conversation; an empty response is rejected. Raises ``DataError`` when a field is missing or no text."""
        if (sample := tokenised(row)) is not None:
            return sample
        messages = conversation(row)
        if not messages[-1]["content"]:
            return Rejected("'response' is empty", row["id"])
        encoded = self._template.encode(messages)
        if not any(encoded.trained):
            return Rejected("'response' has no token of its own", row["id"])
        if not any(encoded.trained[1:]):
            return Rejected("no token is left to train on after the first", row["id"])
        return Sample(encoded.ids, encoded.trained, row["id"], encoded.weights)
