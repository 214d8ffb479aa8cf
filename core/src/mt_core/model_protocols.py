"""Protocols that speak of batches and models: an objective, and a quantizer. Torch is imported for type checkers only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor, nn

    from mt_core.nn import Batch, LossSums, TrainModel
    from mt_core.rows import Rejected, Row, Sample


class Objective(Protocol):
    """An objective: what is learned from a row. ``mt_core.nn.TokenObjective`` implements all but ``encode`` for token losses.

    ``loss_unit`` says what the loss is counted in (``nats per token`` there); of one without it no perplexity is made."""

    def encode(self, row: Row) -> Sample | Rejected:
        """The sample of a row, or why there is none. Raises ``DataError`` for a row of no shape that it knows."""
        ...

    def collate(self, rows: Sequence[Sequence[Sample]], *, length: int) -> Batch:
        """One batch of ``len(rows)`` rows of ``length`` tokens; several samples in a row are packed."""
        ...

    def count(self, batch: Batch) -> float:
        """Return what the loss sum of this batch is divided by, before any forward: the engine adds it over the whole step."""
        ...

    def loss(self, hidden: Tensor, head: nn.Module, batch: Batch) -> LossSums:
        """(B, T, D) -> the sum of the losses of the batch, and what it is a sum over; ``head(hidden_ND)`` gives logits."""
        ...


@runtime_checkable
class HasTerms(Protocol):
    """An objective whose loss has terms with denominators of their own (``LossSums.terms``)."""

    def count_terms(self, batch: Batch) -> Mapping[str, float]:
        """Return what each is divided by, as ``count`` does; the same names in every batch."""
        ...


@runtime_checkable
class HasReference(Protocol):
    """An objective that compares the model with what it was before the first step, its reference.

    ``reference_values`` names numbers that the reference gives each document. They are measured once, with the weights of step 0 and
    without dropout; every sample has them as ``document_values`` then, in a resumed run the same. Nothing is measured for no names.
    What tries the model before (an adapter's probe, the search for a micro-batch) shows batches without them.
    """

    reference_values: tuple[str, ...]

    def measure(self, hidden: Tensor, head: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """(B, T, D) -> for each name (documents,) as ``Batch.document_sums`` gives them."""
        ...


@runtime_checkable
class CouplesStep(Protocol):
    """An objective whose loss of a document depends on others of the step, as the baseline of KTO and the order of AOT do.

    ``step_values`` names numbers of documents that are measured before the first backward of a step, without gradient and dropout;
    nothing is measured for no names. ``couple`` sees those of the whole step, in an evaluation those of all its rows. What tries the
    model before shows batches without what it gives.
    """

    step_values: tuple[str, ...]

    def measure_step(self, hidden: Tensor, head: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """(B, T, D) -> for each name (documents,); those of padding have any number."""
        ...

    def couple(self, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """(documents of the step,) -> as many for each name that ``loss`` finds in ``Batch.documents``."""
        ...


@runtime_checkable
class HasFirstLoss(Protocol):
    """An objective that may know the loss of a run's first step, whatever the rows are; one with another loss is ended."""

    first_loss: float | None
    """``None`` where it is not known."""


class Quantizer(Protocol):
    """Stores frozen linear layers in fewer bits, as they are read: no rank ever holds such a weight dense for longer than that."""

    def replace(self, model: TrainModel) -> None:
        """Put ``mt_core.nn.StoredLinear`` layers in the place of linear ones. The model is on torch's meta device; what is put
        there takes memory on the device that is torch's default one here."""
        ...
