"""Batches: rows on their way from the data to the loss.

Shapes: B rows, T tokens of a row, n trained tokens of the batch, D documents of all rows, I items.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mt_core.nn.media import MediaBatch

NOT_TRAINED = -100
"""Label of a token without loss."""


def identity(value: Tensor) -> Tensor:
    """Return the value: the sum over one rank."""
    return value


DocumentLengths = tuple[tuple[int, ...], ...]
"""For each row, the lengths of its documents; they add up to T."""


@dataclass(frozen=True)
class Batch:
    """Rows of equal length. ``labels[b, t]`` is the token that should follow ``input_ids[b, t]``, or -100.

    ``positions`` start at 0 in each document; ``document_ids`` grow along a row. Padding at the end of a row continues
    its last document: causality keeps it from reaching a real token. ``trained_n`` are the flat indices of the trained
    tokens, and ``document_lengths`` the runs of ``document_ids``; both are derived on the host, where reading them costs
    no synchronisation with the device. ``lengths`` are the tokens of each token's document, padding left out, for what depends
    on how long a document is; ``None`` where ``collate`` does not say.

    ``tokens`` are values of tokens, each where its token is predicted, as labels are. ``documents`` are values of documents, numbered
    through all rows; a row without a sample has one document of padding. ``items`` are the numbers of the first document of each
    sample. Where ranks share rows, ``begin`` is the place of the first token here in the whole row, ``documents`` and ``items`` are
    those of whole rows, and ``over_row`` adds up over these ranks. ``media`` are those of each encoder of the run, by its name, and
    ``grid_positions`` (B, T, 3) times, rows and columns of tokens in their documents, where an item has some.
    """

    input_ids: Tensor
    labels: Tensor
    positions: Tensor
    document_ids: Tensor
    weights: Tensor | None = None
    row_ids: Sequence[str] = ()
    extras: Mapping[str, Any] = field(default_factory=dict)
    trained_n: Tensor | None = None
    document_lengths: DocumentLengths | None = None
    lengths: Tensor | None = None
    tokens: Mapping[str, Tensor] = field(default_factory=dict)
    documents: Mapping[str, Tensor] = field(default_factory=dict)
    items: Tensor | None = None
    begin: int = 0
    over_row: Callable[[Tensor], Tensor] = identity
    media: Mapping[str, MediaBatch] = field(default_factory=dict)
    grid_positions: Tensor | None = None

    def with_index(self) -> Batch:
        """This batch with ``trained_n`` and ``document_lengths`` filled in; call it while the tensors are on the host."""
        trained = np.flatnonzero(self.labels.numpy() != NOT_TRAINED)  # torch takes three times as long
        return replace(self, trained_n=torch.from_numpy(trained), document_lengths=document_lengths(self.document_ids))

    @property
    def trained_tokens(self) -> int:
        """Places with a label, whatever they weigh."""
        return int((self.labels != NOT_TRAINED).sum()) if self.trained_n is None else len(self.trained_n)

    def cut(self, part: int, parts: int) -> Batch:
        """Part ``part`` of ``parts`` of every row's tokens. ``document_ids`` stay whole: attention sees the whole rows."""
        length = self.input_ids.shape[1]
        assert length % parts == 0, f"rows of {length} tokens do not divide into {parts} parts: collate pads them"
        names = ("input_ids", "labels", "positions", "weights", "lengths", "grid_positions")
        assert self.trained_n is None, "with_index() comes after: the indices are those of the part"
        pieces = {name: value.chunk(parts, 1)[part] for name in names if (value := getattr(self, name)) is not None}
        tokens = {name: value.chunk(parts, 1)[part] for name, value in self.tokens.items()}
        media = {name: each.cut(part, parts, length) for name, each in self.media.items()}
        return replace(self, **pieces, tokens=tokens, media=media, begin=self.begin + part * (length // parts))

    def to(self, device: torch.device | str) -> Batch:
        """This batch with its tensors on ``device``."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """This batch with every tensor changed."""

        def visit(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {key: visit(each) for key, each in value.items()}
            if isinstance(value, MediaBatch):
                return value.to(visit)
            return change(value) if isinstance(value, Tensor) else value

        return replace(self, **{each.name: visit(getattr(self, each.name)) for each in fields(self)})

    def document_n(self) -> Tensor:
        """(n,) the number of each trained token's document."""
        ids_BT, length = self.document_ids, self.input_ids.shape[1]
        is_first_BT = torch.ones_like(ids_BT, dtype=torch.bool)
        is_first_BT[:, 1:] = ids_BT[:, 1:] != ids_BT[:, :-1]
        number_BT = is_first_BT.reshape(-1).cumsum(0).reshape(ids_BT.shape) - 1
        number_BT = number_BT[:, self.begin : self.begin + length]
        return number_BT.reshape(-1)[self.index_n()]

    def index_n(self) -> Tensor:
        """(n,) the flat places of the trained tokens."""
        if self.trained_n is not None:
            return self.trained_n
        return (self.labels.reshape(-1) != NOT_TRAINED).nonzero().reshape(-1)

    def select_trained(self, hidden_BTD: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, width) -> (n, width), (n,): hidden states of the trained tokens, and their labels."""
        index_n = self.index_n()
        return hidden_BTD.flatten(0, 1)[index_n], self.labels.reshape(-1)[index_n]

    @property
    def document_count(self) -> int:
        """Return the number of documents of all rows, those of padding included."""
        return sum(map(len, self.document_lengths or document_lengths(self.document_ids.cpu())))

    def document_sums(self, values_n: Tensor) -> Tensor:
        """(n,) -> (D,): values of trained tokens added up over each document, on all ranks that share its row; (n, k) -> (D, k).

        The gradient of what each of these ranks computes from the sums reaches the tokens that it has.
        """
        return self.over_row(
            values_n.new_zeros(self.document_count, *values_n.shape[1:]).index_add(0, self.document_n(), values_n)
        )

    @property
    def counts_items(self) -> bool:
        """Return whether this rank counts the items: one of those that share the rows does."""
        return self.begin == 0


def document_lengths(document_ids_BT: Tensor) -> DocumentLengths:
    """Run lengths of each row of ids, which are on the host."""
    ids_BT = document_ids_BT.numpy()
    rows, length = ids_BT.shape
    flat, is_first = ids_BT.reshape(-1), np.empty(rows * length, dtype=np.bool_)
    np.not_equal(flat[1:], flat[:-1], out=is_first[1:])
    is_first[::length] = True
    begins = np.flatnonzero(is_first)
    ends = np.concatenate((begins[1:], [rows * length][: len(begins)]))  # np.diff(append=…) takes many times as long
    runs = iter((ends - begins).tolist())
    return tuple(tuple(islice(runs, count)) for count in np.bincount(begins // length, minlength=rows).tolist())


@dataclass(frozen=True)
class LossSums:
    """A sum of losses and what it is divided by, both on the device; metrics are (sum, count) pairs.

    Where tokens have weights, ``token_count`` and the counts are sums of these. ``terms`` of the loss with denominators of their own
    are (sum, count) by name; the loss is the sum of all means. ``Objective.count_terms`` has the same names.
    """

    loss_sum: Tensor
    token_count: Tensor
    metrics: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    terms: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)


def mean_of(total: float, count: float) -> float:
    """``total / count``, however small the count is; a sum over nothing is left as it is."""
    return total / count if count > 0 else total
