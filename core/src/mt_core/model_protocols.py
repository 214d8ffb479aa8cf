"""Protocols that speak of batches and models: an objective, and a quantizer. Torch is imported for type checkers only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor, nn

    from mt_core.nn import Batch, LossSums, TrainModel
    from mt_core.rows import Rejected, Row, Sample


class Objective(Protocol):
    """How a row is encoded, and the loss. ``mt_core.nn.TokenObjective`` implements all methods except ``encode`` for token losses.

    ``loss_unit`` is the unit of the loss (``nats per token`` there); without it no perplexity is computed."""

    def encode(self, row: Row) -> Sample | Rejected:
        """The sample of a row, or why there is none. Raises ``DataError`` for a row of no shape that it knows."""
        ...

    def collate(self, rows: Sequence[Sequence[Sample]], *, length: int) -> Batch:
        """One batch of ``len(rows)`` rows of ``length`` tokens; several samples in a row are packed."""
        ...

    def count(self, batch: Batch) -> float:
        """Return this batch's part of the denominator of the loss, before any forward; the engine adds it up over the whole step."""
        ...

    def loss(self, hidden: Tensor, head: nn.Module, batch: Batch) -> LossSums:
        """(B, T, D) -> the sum of the losses of the batch, and its count; ``head(hidden_ND)`` returns logits."""
        ...


@runtime_checkable
class HasTerms(Protocol):
    """An objective whose loss has terms with denominators of their own (``LossSums.terms``)."""

    def count_terms(self, batch: Batch) -> Mapping[str, float]:
        """Return what each is divided by, as ``count`` does; the same names in every batch."""
        ...


@runtime_checkable
class HasReference(Protocol):
    """An objective that compares the model with its reference, the model before the first step.

    ``reference_values`` names numbers that the reference gives each document. They are measured once, with the weights of step 0 and
    without dropout; every sample has them as ``document_values`` then, in a resumed run the same. Those of a stream are measured
    step by step, with the base under the adapter. Nothing is measured for no names. What tries the model before (an adapter's probe,
    the search for a micro-batch) shows batches without them.
    """

    reference_values: tuple[str, ...]

    def measure(self, hidden: Tensor, head: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """(B, T, D) -> for each name (documents,) as ``Batch.document_sums`` gives them."""
        ...


class Quantizer(Protocol):
    """Stores frozen linear layers in fewer bits. Each weight is quantized as it is read, so no rank holds the dense weights."""

    def replace(self, model: TrainModel) -> None:
        """Put ``mt_core.nn.StoredLinear`` layers in the place of linear ones. The model is on torch's meta device; what is put
        there takes memory on the device that is torch's default one here."""
        ...
