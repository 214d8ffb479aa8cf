"""KTO: single answers, each desirable or not, against a baseline that the whole step has.

Shapes: B rows, T tokens, D model width, n trained tokens, A documents of the batch, S documents of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, cycle, islice
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from mt_core import DataError, Rejected, Row, Sample
from mt_core.nn import Batch, LossSums, token_logprobs

from ..labelled import kl_baseline, kto
from .items import ItemObjective, mean_over, report_once
from .preference import REFERENCE, reference_of, refuse_without_reference
from .rows import encode_answers
from .shapes import Labelled, read_labelled

if TYPE_CHECKING:
    from mt_core import Message, Template, Tokenizer

    from .config import KtoConfig

Got = TypeVar("Got")
LABEL, MISMATCH = "label", "mismatch"
"""Values of documents: 1 of a desirable answer, -1 of an undesirable one; 1 of a prompt with the answer of another row. Else 0."""
RATIO, COUNT, BASELINE = "mismatch_ratio", "mismatch_count", "baseline"


class KtoObjective(ItemObjective):
    """Rows with ``label``, and pairs as two answers. The loss is a mean over the answers of the step.

    The baseline is a mean over prompts of the step with answers of other rows, which stand as further documents beside an answer: they
    are read, and not learned from.
    """

    loss_unit = "per answer"
    document_names = ("answer", "answer of another row")
    reference_values = (REFERENCE,)

    def __init__(self, tokenizer: Tokenizer, template: Template, config: KtoConfig) -> None:
        super().__init__(pad_id=tokenizer.pad_id or 0)
        self._template, self._config = template, config
        self._has_baseline = config.loss == "kto"
        self.step_values: tuple[str, ...] = (RATIO, COUNT) if self._has_baseline else ()

    @property
    def first_loss(self) -> float | None:
        """Half the weight of an answer, where both kinds have one weight."""
        weights = {self._config.desirable_weight, self._config.undesirable_weight}
        return weights.pop() / 2 if self._config.prove and len(weights) == 1 else None

    def encode(self, row: Row) -> Sample | Rejected:
        """The answers of a row without those of others. See ``read_labelled``."""
        found = read_labelled(row)
        return found if isinstance(found, Rejected) else self._sample(found)

    def encode_together(self, rows: Sequence[Row]) -> list[Sample | Rejected | DataError]:
        """Encode each row with the answers of the next one that has another prompt, after the last one the first."""
        found = [_or_error(read_labelled, row) for row in rows]
        whole = [each for each in found if isinstance(each, Labelled)]
        samples = (
            _or_error(self._sample, row, _answers_beside(whole, number) if self._has_baseline else ())
            for number, row in enumerate(whole)
        )
        return [next(samples) if isinstance(each, Labelled) else each for each in found]

    def _sample(self, row: Labelled, others: Sequence[list[Message]] = ()) -> Sample | Rejected:
        """The answers of a row, and for each its prompt with one of the answers of another row, in turn."""
        mismatches = list(islice(cycle(others), len(row.answers)))
        labels = [1.0 if each else -1.0 for each in row.labels]
        values = {
            LABEL: [*labels, *[0.0] * len(mismatches)],
            MISMATCH: [*[0.0] * len(labels), *[1.0] * len(mismatches)],
        }
        return encode_answers(row.row_id, self._template, row.prompt, [*row.answers, *mismatches], values)

    def count(self, batch: Batch) -> float:
        """Answers of the batch that this rank counts."""
        return float((batch.documents[LABEL] != 0).sum()) if batch.counts_items else 0.0

    def measure(self, hidden: Tensor, head: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """The log-probability of each document, (A,)."""
        return {REFERENCE: self._logps(hidden, head, batch, torch.ones_like(batch.documents[LABEL], dtype=torch.bool))}

    def measure_step(self, hidden: Tensor, head: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Log-ratios of model and reference for answers of other rows, (A,), and which documents these are."""
        is_mismatch_A = batch.documents[MISMATCH] > 0
        logps_A = self._logps(hidden, head, batch, is_mismatch_A)
        ratios_A = (logps_A - reference_of(batch, REFERENCE, logps_A)) * is_mismatch_A
        return {RATIO: ratios_A, COUNT: is_mismatch_A}

    def couple(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """(S,) -> KTO's z0 for each document: 0 where no row has the answer of another."""
        total, count = values[RATIO].sum(), values[COUNT].sum()
        return {BASELINE: kl_baseline(total, count.clamp(min=1)).expand(len(values[RATIO]))}

    def loss(self, hidden: Tensor, head: nn.Module, batch: Batch) -> LossSums:
        """Sum over the answers of the batch; see ``Objective``. Raises ``UsageError`` for an evaluation without a reference."""
        refuse_without_reference(batch, self.reference_values)
        labels_A = batch.documents[LABEL]
        is_answer_A = labels_A != 0
        logps_A = self._logps(hidden, head, batch, is_answer_A)
        ratios = (logps_A - reference_of(batch, REFERENCE, logps_A))[is_answer_A]
        baseline = batch.documents[BASELINE][is_answer_A] if BASELINE in batch.documents else torch.zeros_like(ratios)
        is_good = labels_A[is_answer_A] > 0
        config = self._config
        losses = kto(
            ratios,
            is_good,
            baseline,
            beta=config.beta,
            desirable_weight=config.desirable_weight,
            undesirable_weight=config.undesirable_weight,
        )
        kinds = {"desirable": is_good, "undesirable": ~is_good}
        figures = {f"reward_{name}": (config.beta * ratios, among) for name, among in kinds.items()}
        figures |= {f"logp_{name}": (logps_A[is_answer_A], among) for name, among in kinds.items()}
        every = torch.ones_like(is_good)
        figures["reward_accuracy"] = ((ratios > baseline) == is_good).float(), every
        if self._has_baseline:
            figures["kl"] = baseline, every
        _, count = mean_over(losses, every, batch)
        means = {name: mean_over(*figure, batch) for name, figure in figures.items()}
        return LossSums(report_once(losses.sum(), batch), count, means)

    def _logps(self, hidden: Tensor, head: nn.Module, batch: Batch, wanted_A: Tensor) -> Tensor:
        """(A,) the log-probability of the answers of some documents, 0 of the others."""
        hidden_nD, labels_n = batch.select_trained(hidden)
        wanted_n = wanted_A[batch.document_n()]
        logps, _ = token_logprobs(head, hidden_nD[wanted_n], labels_n[wanted_n])
        return batch.document_sums(logps.new_zeros(len(labels_n)).masked_scatter(wanted_n, logps))


def _or_error(function: Callable[..., Got], *given: Any) -> Got | DataError:
    """Return what the function gives, or why it cannot: a row that is bad leaves those beside it alone."""
    try:
        return function(*given)
    except DataError as error:
        return error


def _answers_beside(rows: Sequence[Labelled], number: int) -> Sequence[list[Message]]:
    """Return the answers of the next row with another prompt, after the last one the first; nothing where there is none."""
    around = chain(rows[number + 1 :], rows[:number])
    return next((each.answers for each in around if each.prompt != rows[number].prompt), ())
