"""Context of a block, beside the hidden states: positions, documents, attention, and the cache of generation.

Shapes: B rows, T query tokens, S key tokens (T plus what a cache holds), N query heads, K key/value heads, H head width,
W width of the values, which is H in most models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypedDict, Unpack

from torch import Tensor, nn

from mt_core.nn.batch import DocumentLengths
from mt_core.nn.cache import KVCache
from mt_core.nn.compilation import exclude_from_compile
from mt_core.nn.step import StepFigures, StepSums


class AttentionOptions(TypedDict, total=False):
    """Keywords of an ``AttentionFn``: what happens to scores, and which tokens a query sees."""

    scale: float | None
    window: int | None
    softcap: float | None
    sinks_N: Tensor | None
    chunk: int | None


class AttentionFn(Protocol):
    """Attention as a block calls it; the engine passes it in through ``BlockContext``."""

    def __call__(
        self, q_BTNH: Tensor, k_BSKH: Tensor, v_BSKW: Tensor, context: BlockContext, **options: Unpack[AttentionOptions]
    ) -> Tensor:
        """(B, T, N, H), (B, S, K, H), (B, S, K, W) -> (B, T, N, W).

        A token sees the tokens before it in its own document, and itself; never the padding that ``context.cache``
        names. N is a multiple of K. ``scale`` defaults to 1/sqrt(H). With a ``window`` (tokens) a token sees itself and
        the ``window - 1`` before it (https://arxiv.org/abs/2004.05150); with a ``softcap`` c a score x counts as
        c · tanh(x / c) (https://arxiv.org/abs/2408.00118, section 2). ``sinks_N`` are scores, one for each query head, that
        take part in the softmax and have no value (https://arxiv.org/abs/2309.17453); neither scale nor cap is for them. With
        a ``chunk`` (tokens) the token at position p of its document sees those of floor(p / chunk) alone. All go together.
        """
        ...


BlockRunner = Callable[[nn.Module, Tensor, "BlockContext"], Tensor]
"""Runs a block, (B, T, D) -> (B, T, D), so that less is kept for its backward."""


@dataclass(frozen=True)
class BlockContext:
    """Inputs of a block in addition to hidden states. Every pipeline stage makes it from the batch alone.

    ``shared`` lets the first block compute something for all (rotary tables); it belongs to one forward of one stage, so
    a block computes what it does not find there. ``labels_BT`` (-100 where nothing is trained) is for what counts tokens: how much
    padding there is hangs on how rows are divided. ``lengths_BT`` are the tokens of each token's document, without padding.
    ``sums`` are the model's own (``TrainModel.sums``): what ``report`` and ``gather`` add to. ``grid_positions_BT3`` are times, rows and
    columns of tokens, where media have some; of text all three are one position. ``levels`` are flat places of media and what is
    added there behind the first blocks, (M, levels, D); ``TrainModel.embed_batch`` fills them. ``recompute`` is how ``run_recomputed``
    runs a block, where an engine has a way of its own.
    """

    positions_BT: Tensor
    document_ids_BT: Tensor
    attention: AttentionFn
    cache: KVCache | None = None
    document_lengths: DocumentLengths | None = None
    shared: dict[str, Any] = field(default_factory=dict)
    labels_BT: Tensor | None = None
    lengths_BT: Tensor | None = None
    sums: StepSums | None = None
    grid_positions_BT3: Tensor | None = None
    levels: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    recompute: BlockRunner | None = None

    def over_row(self, value: Tensor) -> Tensor:
        """Return a sum over all tokens of each row, from that over the tokens that are here: ranks may share rows. It has no gradient."""
        added = getattr(self.attention, "over_row", None)
        return value.detach() if added is None else added(value.detach())

    @exclude_from_compile
    def collects(self) -> bool:
        """Return whether this is a forward of a training step, so that a block may save itself the work of figures in evaluation and
        generation. It is true as well where a block runs again for its backward, where ``report`` and ``gather`` add nothing."""
        return self.sums is not None and self.sums.collects

    @exclude_from_compile
    def report(self, name: str, total: Tensor, count: Tensor | float) -> None:
        """Add to a figure of the step's record: the sum of all ``total`` over the sum of all ``count``, scalars that stay on the device.

        They are added up over the blocks that report the name, micro-batches, ranks and pipeline stages, and copied to the host once a
        step. Sums are over the tokens that are here (``labels_BT`` says which are trained). Blocks report the same names in every
        step. It has no gradient.
        """
        if self.sums is not None:
            self.sums.report(name, total, count)

    @exclude_from_compile
    def gather(self, name: str, values: Tensor, figures: StepFigures | None = None) -> None:
        """Add ``values``, of any one shape, to what blocks sum up under this name in the step; ``TrainModel.after_step`` reads the sum
        over micro-batches and ranks by ``context.step_sum(name)``. Counts are exact: the sum is in fp64.

        ``figures`` makes scalars of this sum for the step's record, by name: what is no mean over tokens (the largest count) then does
        not hang on micro-batches and ranks. Of a name that several blocks have, the record has the mean.
        """
        if self.sums is not None:
            self.sums.gather(name, values, figures)
