"""Supervised fine-tuning: a conversation, with loss on what the template says (the assistant's turns)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mt_core import DataError, Rejected, Row, Sample, conversation
from mt_core.nn import TokenObjective

from .tokenised import tokenised

if TYPE_CHECKING:
    from mt_core.protocols import Message, Template, Tokenizer


class SupervisedFineTuning(TokenObjective):
    """Rows that are conversations (``prompt`` and ``response``, ``messages`` …), written down by the run's template."""

    def __init__(self, tokenizer: Tokenizer, template: Template, **figures: Any) -> None:
        super().__init__(pad_id=tokenizer.pad_id or 0, **figures)
        self._template = template

    def encode(self, row: Row) -> Sample | Rejected:
        """The sample of a conversation; an empty answer is rejected. Raises ``DataError`` for a row that has no shape, or no template."""
        if (sample := tokenised(row)) is not None:
            return sample
        messages = conversation(row)
        if any(_is_empty(message) for message in messages):
            return Rejected("'response' is empty" if messages[-1].get("raw") else "an answer is empty", row["id"])
        try:
            encoded = self._template.encode(messages)
        except DataError as error:
            raise DataError(f"{row['id']}: {error}") from error
        if not any(encoded.trained):
            is_bad = not messages[-1].get("train", True)
            return Rejected(
                "no turn is to be trained on" if is_bad else "'response' has no token of its own", row["id"]
            )
        if not any(encoded.trained[1:]):
            return Rejected("no token is left to train on after the first", row["id"])
        return Sample(encoded.ids, encoded.trained, row["id"], encoded.weights)


def _is_empty(message: Message) -> bool:
    """Whether an answer that may be trained on would teach to say nothing; templates cut white space off."""
    if message["role"] != "assistant" or not message.get("train", True):
        return False
    content: str = message["content"]
    return not (content if message.get("raw") else content.strip())
