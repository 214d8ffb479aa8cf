"""Supervised fine-tuning: a response to a prompt, with loss on the response only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mt_core import Rejected, Row, Sample
from mt_core.nn import TokenObjective

from .fields import sample, text_field

if TYPE_CHECKING:
    from mt_core.protocols import Tokenizer


class SupervisedFineTuning(TokenObjective):
    """Rows ``{"prompt", "response"}`` become begin + prompt + response + end; response and end are trained.

    The prompt may be empty. Nothing is put between the two: spaces and line ends are the data's.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(pad_id=tokenizer.pad_id or 0)
        self._tokenizer = tokenizer

    def encode(self, row: Row) -> Sample | Rejected:
        """The sample of a pair; an empty response is rejected. Raises ``DataError`` when a field is missing or no text."""
        prompt, response = text_field(row, "prompt"), text_field(row, "response")
        if not response:
            return Rejected("'response' is empty", row["id"])
        context_ids, response_ids = self._boundary(prompt, response)
        if not response_ids:
            return Rejected("'response' has no token of its own", row["id"])
        bos, eos = self._tokenizer.bos_id, self._tokenizer.eos_id
        before = [*([] if bos is None else [bos]), *context_ids]
        after = [*response_ids, *([] if eos is None else [eos])]
        return sample(before + after, [False] * len(before) + [True] * len(after), row)

    def _boundary(self, prompt: str, response: str) -> tuple[list[int], list[int]]:
        """Ids of the prompt and of the response.

        The prompt's ids are those that generation will see, where it stands alone; a token that straddles the boundary
        would show the model a context that never comes, and leave the start of the response without loss. So the
        response is tokenised as a continuation, with its natural ids (``▁yes`` after ``Answer:``, no second space), where
        that leaves the prompt's ids as they are, and alone where the tokenizer would merge across the boundary.
        """
        context_ids = self._tokenizer.encode(prompt)
        joint_ids = self._tokenizer.encode(prompt + response)
        if joint_ids[: len(context_ids)] == context_ids:
            return context_ids, joint_ids[len(context_ids) :]
        return context_ids, self._tokenizer.encode(response)
