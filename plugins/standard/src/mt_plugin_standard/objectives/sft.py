"""Supervised fine-tuning: a conversation, with loss on what the template says (the assistant's turns)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from mt_core import ManyConversations, Rejected, Row, Sample, conversation
from mt_core.nn import LossSums, TokenObjective, token_logprobs

from .tokenised import tokenised_sample

if TYPE_CHECKING:
    from torch import Tensor, nn

    from mt_core.nn import Batch
    from mt_core.protocols import Template, Tokenizer
    from mt_core.rows import Encoded, Message


class SupervisedFineTuning(TokenObjective):
    """Rows that are conversations (``prompt`` and ``response``, ``messages`` …), written down by the run's template."""

    def __init__(self, tokenizer: Tokenizer, template: Template, **figures: Any) -> None:
        super().__init__(pad_id=tokenizer.pad_id or 0, **figures)
        self._template = template

    def encode(self, row: Row) -> Sample | Rejected:
        """The sample of a conversation; an empty answer is rejected. Raises ``DataError`` for a row that has no shape, or no template."""
        found = _turns(row)
        if not isinstance(found, list):
            return found
        return _sample(self._template.encode(found), found, row["id"])

    def encode_many(self, rows: Sequence[Row]) -> list[Sample | Rejected]:
        """Return what ``encode`` gives for each row: their conversations at once, where the template can."""
        if not isinstance(self._template, ManyConversations):
            return [self.encode(row) for row in rows]
        found = [_turns(row) for row in rows]
        encoded = iter(self._template.encode_many([each for each in found if isinstance(each, list)]))
        pairs = zip(found, rows, strict=True)
        return [_sample(next(encoded), each, row["id"]) if isinstance(each, list) else each for each, row in pairs]


class DynamicFineTuning(SupervisedFineTuning):
    """The cross-entropy of each token times its probability, with the figure ``nll``, the plain one (https://arxiv.org/abs/2508.05629)."""

    def loss(self, hidden: Tensor, head: nn.Module, batch: Batch) -> LossSums:
        """Sum of the losses of the trained tokens; see ``TokenObjective``. In evaluation it is the cross-entropy."""
        if not head.training:
            plain = super().loss(hidden, head, batch)
            figures = {"nll": (plain.loss_sum.detach(), plain.token_count), **plain.metrics}  # a run keeps its figures
            return LossSums(plain.loss_sum, plain.token_count, figures)
        hidden_nD, labels_n = batch.select_trained(hidden)
        weights_n = hidden_nD.new_ones(len(labels_n), dtype=torch.float32)
        if batch.weights is not None:
            weights_n = batch.weights.reshape(-1)[batch.index_n()]
        logps_n, _ = token_logprobs(head, hidden_nD, labels_n)
        losses_n = -logps_n.detach().exp() * logps_n
        count = weights_n.sum()
        figures = {"nll": (-(logps_n.detach() * weights_n).sum(), count)}
        if self.scores is not None:
            figures |= self.scores.of(head, hidden_nD, labels_n, weights_n)
        return LossSums((losses_n * weights_n).sum(), count, figures)


def _turns(row: Row) -> list[Message] | Sample | Rejected:
    """The conversation of a row, or what becomes of a row that has none to encode."""
    if (sample := tokenised_sample(row)) is not None:
        return sample
    messages = conversation(row)
    if any(_is_empty(message) for message in messages):
        return Rejected("'response' is empty" if messages[-1].get("raw") else "an answer is empty", row["id"])
    return messages


def _sample(encoded: Encoded, messages: Sequence[Message], row_id: str) -> Sample | Rejected:
    if not any(encoded.trained):
        is_bad = not messages[-1].get("train", True)
        return Rejected("no turn is to be trained on" if is_bad else "'response' has no token of its own", row_id)
    if not any(islice(encoded.trained, 1, None)):
        return Rejected("no token is left to train on after the first", row_id)
    return encoded.sample(row_id)


def _is_empty(message: Message) -> bool:
    """Return whether an answer that may be trained on would teach to say nothing; templates cut white space off."""
    if message["role"] != "assistant" or not message.get("train", True) or message.get("tool_calls"):
        return False
    content: str = message["content"]
    return not (content if message.get("raw") else content.strip())
