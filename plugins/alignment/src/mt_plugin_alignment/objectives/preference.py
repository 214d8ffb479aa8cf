"""Objectives over pairs: log-probabilities of both answers, and what any loss makes of them.

Shapes: B rows, T tokens, D model width, n trained tokens, A documents of the batch, P pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from mt_core import Rejected, Row, Sample, UsageError
from mt_core.nn import NOT_TRAINED, Batch, LossSums, token_logprobs

from ..modifications import answer_weights, is_in_tail, weaken_tails, weigh
from ..pairs import Pairs
from .items import ItemObjective, first_documents, report_once
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
ANSWER = "answer"
"""Token value that is 1 where a token of an answer is predicted: there where prompts have labels, too."""


class PreferenceObjective(ItemObjective):
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
        self._has_prompts = bool(self._likelihood) and options.nll_on == "all"
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

    def collate(self, rows: Sequence[Sequence[Sample]], *, length: int) -> Batch:
        """See ``TokenObjective``. With ``nll_on: all`` every token of a chosen side has a label."""
        batch = super().collate(rows, length=length)
        return _label_prompts(batch) if self._has_prompts else batch

    def count_terms(self, batch: Batch) -> Mapping[str, float]:
        """Return the denominator of the likelihood: answers, or the tokens of chosen sides that are here and have a label."""
        if not self._likelihood:
            return {}
        if self._options.sft_mean == "answers":
            return {LIKELIHOOD: self.count(batch)}
        return {LIKELIHOOD: float(torch.isin(batch.document_n(), first_documents(batch)).sum())}

    def measure(self, hidden: Tensor, head: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """The sums of log-probabilities of each document, (A,), by the names of ``reference_values``."""
        hidden_nD, labels_n = batch.select_trained(hidden)
        sums = self._document_sums(token_logprobs(head, hidden_nD, labels_n)[0], batch)
        named = {REFERENCE: sums.logps_A, TAIL: sums.tails_A}
        return {name: value for name in self.reference_values if (value := named[name]) is not None}

    def loss(self, hidden: Tensor, head: nn.Module, batch: Batch) -> LossSums:
        """Sum over the pairs of the batch; see ``Objective``. Raises ``UsageError`` for an evaluation without a reference."""
        refuse_without_reference(batch, self.reference_values)
        pairs, logps_n = self.read_pairs(hidden, head, batch)
        loss_P = self.loss_of(self.modify(pairs), batch)
        if self._options.wpo:
            loss_P = weigh(loss_P, pairs)
        return self.sums(batch, loss_P, self._figures(pairs), self._terms(batch, logps_n, pairs))

    def read_pairs(self, hidden: Tensor, head: nn.Module, batch: Batch) -> tuple[Pairs, Tensor]:
        """Return the pairs of the batch, and the log-probability of each trained token, (n,)."""
        hidden_nD, labels_n = batch.select_trained(hidden)
        logps_n, _ = token_logprobs(head, hidden_nD, labels_n)
        return self._pairs(head, hidden_nD, batch, self._document_sums(logps_n, batch)), logps_n

    def modify(self, pairs: Pairs) -> Pairs:
        """Return the pairs as the loss sees them."""
        return weaken_tails(pairs, self._options.ld_alpha) if self._has_tails else pairs

    def loss_of(self, pairs: Pairs, batch: Batch) -> Tensor:
        """Return the loss of each pair, (P,)."""
        total = torch.zeros_like(pairs.chosen)
        for loss, weight in self._losses:
            total = total + weight * loss(pairs)
        return total

    def _answer_n(self, batch: Batch) -> Tensor:
        """(n,) 1 for each token of an answer, 0 for those of prompts that have labels."""
        if self._has_prompts:
            return _token_values(batch, ANSWER)
        return torch.ones(len(batch.index_n()), device=batch.labels.device)

    def _document_sums(self, logps_n: Tensor, batch: Batch) -> _Sums:
        answer_n = self._answer_n(batch)
        logps_n = logps_n * answer_n
        logps_A, lengths_A = batch.document_sums(torch.stack((logps_n, answer_n), 1)).unbind(1)
        if not self._has_tails:
            return _Sums(logps_A, lengths_A)
        tail_n = is_in_tail(_token_values(batch, "place"), batch.document_n(), lengths_A, first_documents(batch))
        return _Sums(logps_A, lengths_A, batch.document_sums(logps_n * tail_n))

    def _pairs(self, head: nn.Module, hidden_nD: Tensor, batch: Batch, sums: _Sums) -> Pairs:
        columns = {"": sums.logps_A, **({} if sums.tails_A is None else {"_tail": sums.tails_A})}
        references = {
            f"reference_{side}{end}": reference_of(batch, f"{REFERENCE}{end}", value_A)[documents]
            for end, value_A in columns.items()
            for side, documents in _sides(batch)
            if self.reference_values
        }
        if self._options.wpo:
            squares_A = batch.document_sums(log_squares(head, hidden_nD) * self._answer_n(batch))
            columns["_weights"] = answer_weights(sums.logps_A.detach(), squares_A, sums.lengths_A.clamp(min=1))
        columns["_lengths"] = sums.lengths_A
        own = {f"{side}{end}": value[places] for end, value in columns.items() for side, places in _sides(batch)}
        return Pairs(**own, **references)

    def _terms(self, batch: Batch, logps_n: Tensor, pairs: Pairs) -> Mapping[str, tuple[Tensor, Tensor]]:
        if not self._likelihood:
            return {}
        if self._options.sft_mean == "answers":
            count = torch.tensor(self.count(batch), device=logps_n.device)
            mean_P = self._whole_means(logps_n, batch) if self._has_prompts else pairs.chosen_mean
            return {LIKELIHOOD: (report_once(-self._likelihood * mean_P.sum(), batch), count)}
        is_chosen_n = torch.isin(batch.document_n(), first_documents(batch))
        return {LIKELIHOOD: (-self._likelihood * (logps_n * is_chosen_n).sum(), is_chosen_n.sum().float())}

    def _whole_means(self, logps_n: Tensor, batch: Batch) -> Tensor:
        """Return the mean log-probability of all tokens of each chosen side, (P,)."""
        sums_A2 = batch.document_sums(torch.stack((logps_n, torch.ones_like(logps_n)), 1))
        totals_P, labels_P = sums_A2[first_documents(batch)].unbind(1)
        return totals_P / labels_P

    def _figures(self, pairs: Pairs) -> Mapping[str, Tensor]:
        """Return figures of each pair. Rewards are β times the log-ratio to the reference, or the log-probability where there is none."""
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


def reference_of(batch: Batch, name: str, now_A: Tensor) -> Tensor:
    """Return what was measured; the model itself where nothing was yet, as in a probe before the first step."""
    return batch.documents[name] if name in batch.documents else now_A.detach()


def refuse_without_reference(batch: Batch, names: Sequence[str]) -> None:
    """Raise ``UsageError`` for an evaluation of rows that have no reference."""
    if not torch.is_grad_enabled() and not batch.documents.keys() >= set(names):
        raise UsageError(
            "these rows have no reference: it is measured when a training begins. Evaluate with --objective sft, or with a loss"
            " without a reference (simpo, orpo)"
        )


class _Sums(NamedTuple):
    """Sums over the tokens of each document's answer, (A,): log-probabilities, tokens, and log-probabilities of tokens behind the
    length of the shorter answer."""

    logps_A: Tensor
    lengths_A: Tensor
    tails_A: Tensor | None = None


def _label_prompts(batch: Batch) -> Batch:
    """Give every token of a first document the next one as its label, and say by ``ANSWER`` which labels were there before."""
    assert batch.lengths is not None, "TokenObjective says how long documents are"
    is_answer_BT = batch.labels != NOT_TRAINED
    next_BT = batch.input_ids.roll(-1, 1).where(batch.positions + 1 < batch.lengths, NOT_TRAINED)
    whole = replace(batch, labels=next_BT)
    index_n = whole.index_n()[torch.isin(whole.document_n(), first_documents(batch))]
    labels_BT = batch.labels.clone()
    labels_BT.view(-1)[index_n] = next_BT.view(-1)[index_n]
    return replace(batch, labels=labels_BT, tokens={**batch.tokens, ANSWER: is_answer_BT.float()})


def _token_values(batch: Batch, name: str) -> Tensor:
    """(n,) a value of each token that has a label."""
    return batch.tokens[name].reshape(-1)[batch.index_n()]


def _sides(batch: Batch) -> tuple[tuple[str, Tensor], tuple[str, Tensor]]:
    """Return the numbers of the documents of each side, (P,)."""
    chosen_P = first_documents(batch)
    return (SIDES[0], chosen_P), (SIDES[1], chosen_P + 1)
