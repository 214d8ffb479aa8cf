"""Objectives over pairs: log-probabilities of both answers, and what any loss makes of them.

Shapes: B rows, T tokens, D model width, n trained tokens, A documents of the batch, P pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mt_core import Rejected, Row, Sample, UsageError
from mt_core.nn import Batch, LossSums, TokenObjective, token_logprobs

from ..modifications import answer_weights, weaken_tails, weigh
from ..pairs import Pairs
from .rows import encode_pair
from .shapes import SIDES
from .squares import log_squares

if TYPE_CHECKING:
    from mt_core import Template, Tokenizer

    from ..losses.base import PreferenceLoss
    from .config import PairOptions

REFERENCE, TAIL = "reference", "reference_tail"
LIKELIHOOD = "sft"
"""Name of the term of likelihood, whose mean the record has."""


class PreferenceObjective(TokenObjective):
    """Rows with ``chosen`` and ``rejected``. The loss is a mean over the pairs of the step, whatever divides it."""

    loss_unit = "per pair"
    document_names = SIDES

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: Template,
        options: PairOptions,
        losses: Sequence[PreferenceLoss],
        weights: Sequence[float],
    ) -> None:
        super().__init__(pad_id=tokenizer.pad_id or 0)
        self._template, self._options = template, options
        self._losses = tuple(zip(losses, weights, strict=True))
        self._likelihood = options.sft + sum(weight * loss.nll for loss, weight in self._losses)
        self._has_tails = options.ld_alpha < 1
        needs = any(loss.needs_reference for loss in losses)
        self.reference_values: tuple[str, ...] = (
            ((REFERENCE, TAIL) if self._has_tails else (REFERENCE,)) if needs else ()
        )

    @property
    def first_loss(self) -> float | None:
        """The loss of the first step, where model and reference are one; ``None`` where it follows from the rows, too."""
        starts = [loss.known_start for loss, _ in self._losses]
        if not self._options.prove or self._options.wpo or self._likelihood or None in starts:
            return None
        return sum(weight * (loss.known_start or 0.0) for loss, weight in self._losses)

    def encode(self, row: Row) -> Sample | Rejected:
        """See ``encode_pair``."""
        return encode_pair(row, self._template, places=self._has_tails)

    def count(self, batch: Batch) -> float:
        """Pairs of the batch; those of rows that ranks share are counted by the first of these."""
        return float(len(_firsts(batch)) if batch.counts_items else 0)

    def count_terms(self, batch: Batch) -> Mapping[str, float]:
        """What the likelihood is divided by: answers, or the tokens of chosen answers that are here."""
        if not self._likelihood:
            return {}
        if self._options.sft_mean == "answers":
            return {LIKELIHOOD: self.count(batch)}
        return {LIKELIHOOD: float(torch.isin(batch.document_n(), _firsts(batch)).sum())}

    def measure(self, hidden: Tensor, head: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """The sums of log-probabilities of each document, (A,), by the names of ``reference_values``."""
        logps_n = _logps(hidden, head, batch)
        sums = {REFERENCE: batch.document_sums(logps_n)}
        if self._has_tails:
            sums[TAIL] = batch.document_sums(logps_n * self._tail(batch))
        return {name: sums[name] for name in self.reference_values}

    def loss(self, hidden: Tensor, head: nn.Module, batch: Batch) -> LossSums:
        """Sum over the pairs of the batch; see ``Objective``. Raises ``UsageError`` for an evaluation without a reference."""
        logps_n = _logps(hidden, head, batch)
        firsts = _firsts(batch)
        lengths_A = batch.document_sums(torch.ones_like(logps_n))
        pairs = self._pairs(hidden, head, batch, logps_n, lengths_A)
        loss_P = self._loss_of(pairs)
        counted = float(len(firsts) if batch.counts_items else 0)
        count = torch.tensor(counted, device=hidden.device)
        return LossSums(
            _reported(loss_P.sum(), batch),
            count,
            {name: (_reported(value.detach().sum(), batch), count) for name, value in self._figures(pairs).items()},
            self._terms(batch, logps_n, pairs, count),
        )

    def _loss_of(self, pairs: Pairs) -> Tensor:
        if self._has_tails:
            pairs = weaken_tails(pairs, self._options.ld_alpha)
        total = torch.zeros_like(pairs.chosen)
        for loss, weight in self._losses:
            total = total + weight * loss(pairs)
        return weigh(total, pairs) if self._options.wpo else total

    def _pairs(self, hidden: Tensor, head: nn.Module, batch: Batch, logps_n: Tensor, lengths_A: Tensor) -> Pairs:
        firsts = _firsts(batch)
        seconds = firsts + 1
        columns = {"": batch.document_sums(logps_n)}
        if self._has_tails:
            columns["_tail"] = batch.document_sums(logps_n * self._tail(batch, lengths_A))
        if self._options.wpo:
            squares_A = batch.document_sums(log_squares(head, _trained(hidden, batch)))
            columns["_weights"] = answer_weights(columns[""].detach(), squares_A, lengths_A.clamp(min=1))
        found = {}
        for name, sums_A in columns.items():
            found[f"chosen{name}"], found[f"rejected{name}"] = sums_A[firsts], sums_A[seconds]
        for name, end in ((REFERENCE, ""), (TAIL, "_tail")) if self.reference_values else ():
            if end in columns:
                reference_A = self._reference(batch, name, columns[end])
                found[f"reference_chosen{end}"] = reference_A[firsts]
                found[f"reference_rejected{end}"] = reference_A[seconds]
        return Pairs(chosen_lengths=lengths_A[firsts], rejected_lengths=lengths_A[seconds], **found)

    def _reference(self, batch: Batch, name: str, now_A: Tensor) -> Tensor:
        """What was measured; the model itself where nothing was yet, as in a probe before the first step."""
        if name in batch.documents:
            return batch.documents[name]
        if not torch.is_grad_enabled():
            raise UsageError(
                "these rows have no reference: it is measured when a training begins. Evaluate with --objective sft, or with a loss"
                " without a reference (simpo, orpo)"
            )
        return now_A.detach()

    def _tail(self, batch: Batch, lengths_A: Tensor | None = None) -> Tensor:
        """(n,) 1 for tokens behind the length of the shorter answer of their pair, 0 for others."""
        index_n = batch.index_n()
        if lengths_A is None:
            lengths_A = batch.document_sums(torch.ones(len(index_n), device=index_n.device))
        firsts = _firsts(batch)
        shared_A = lengths_A.clone()
        shared_A[firsts] = shared_A[firsts + 1] = torch.minimum(lengths_A[firsts], lengths_A[firsts + 1])
        return (batch.tokens["place"].reshape(-1)[index_n] >= shared_A[batch.document_n()]).to(torch.float32)

    def _terms(self, batch: Batch, logps_n: Tensor, pairs: Pairs, count: Tensor) -> Mapping[str, tuple[Tensor, Tensor]]:
        if not self._likelihood:
            return {}
        if self._options.sft_mean == "answers":
            return {LIKELIHOOD: (_reported(-self._likelihood * pairs.chosen_mean.sum(), batch), count)}
        is_chosen_n = torch.isin(batch.document_n(), _firsts(batch))
        return {LIKELIHOOD: (-self._likelihood * (logps_n * is_chosen_n).sum(), is_chosen_n.sum().float())}

    def _figures(self, pairs: Pairs) -> Mapping[str, Tensor]:
        """Of each pair. Rewards are β times the log-ratio to the reference, or the log-probability where there is none."""
        beta = self._losses[0][0].beta
        has_reference = pairs.reference_chosen is not None
        chosen, rejected = (
            (pairs.chosen_reward, pairs.rejected_reward) if has_reference else (pairs.chosen_mean, pairs.rejected_mean)
        )
        return {
            "reward_chosen": beta * chosen,
            "reward_rejected": beta * rejected,
            "reward_margin": beta * (chosen - rejected),
            "reward_accuracy": (chosen > rejected).float(),
            "logp_chosen": pairs.chosen,
            "logp_rejected": pairs.rejected,
        }


def _firsts(batch: Batch) -> Tensor:
    """(P,) the number of the chosen document of each pair; the rejected one is the next."""
    assert batch.items is not None, "collate() numbers the items"
    return batch.items


def _trained(hidden_BTD: Tensor, batch: Batch) -> Tensor:
    return hidden_BTD.flatten(0, 1)[batch.index_n()]


def _logps(hidden_BTD: Tensor, head: nn.Module, batch: Batch) -> Tensor:
    """(n,) log-probabilities of the trained tokens."""
    labels_n = batch.labels.reshape(-1)[batch.index_n()]
    return token_logprobs(head, _trained(hidden_BTD, batch), labels_n)[0]


def _reported(total: Tensor, batch: Batch) -> Tensor:
    """A sum over pairs; of ranks that share rows all have its gradient, and the first one has its value."""
    return total if batch.counts_items else total - total.detach()
