"""Media in a batch, and the two halves that make hidden states of them.

Shapes: B rows, T tokens, D model width, I items, N features of all items, W width of a feature, M projected features of all items.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Generator, Tensor, nn

from mt_core.rows import Grid, MediaItem


@dataclass(frozen=True)
class MediaBatch:
    """Media of one encoder in a batch, in the order of their places.

    ``places_M`` are flat places in (B, T), ``rows_M`` the projected features that stand there: all of them where a rank has whole rows.
    ``features``, ``tokens`` and ``grids`` are those of each item. ``inputs`` are what the encoder reads; only who has the first layer has
    them. Where there is no item they are those of a dummy, whose features stand nowhere, and ``features`` and ``grids`` are its own.
    ``stored_NW`` are features that were computed before: then there are no ``inputs``, and no rank calls the encoder.
    """

    items: tuple[MediaItem, ...]
    features: tuple[int, ...]
    tokens: tuple[int, ...]
    grids: tuple[Grid | None, ...]
    places_M: Tensor
    rows_M: Tensor
    inputs: Mapping[str, Tensor] | None = None
    stored_NW: Tensor | None = None

    def cut(self, part: int, parts: int, length: int) -> MediaBatch:
        """Keep the places in part ``part`` of ``parts`` of rows of ``length`` tokens, counted in the part. The items stay all."""
        size = length // parts
        rows_M, columns_M = self.places_M // length, self.places_M % length
        here_M = columns_M // size == part
        places_M = rows_M * size + columns_M - part * size
        return replace(self, places_M=places_M[here_M], rows_M=self.rows_M[here_M])

    def keep(self, places_BT: Tensor) -> MediaBatch:
        """Leave out what would stand elsewhere than at these places of (B, T). The items stay all."""
        here_M = places_BT.flatten()[self.places_M]
        return replace(self, places_M=self.places_M[here_M], rows_M=self.rows_M[here_M])

    def to(self, move: Callable[[Tensor], Tensor]) -> MediaBatch:
        """Return this batch with every tensor moved."""
        inputs = None if self.inputs is None else {name: move(each) for name, each in self.inputs.items()}
        stored_NW = None if self.stored_NW is None else move(self.stored_NW)
        return replace(self, places_M=move(self.places_M), rows_M=move(self.rows_M), inputs=inputs, stored_NW=stored_NW)


class Encoder(nn.Module):
    """Computes features of items. Its calls must not depend on the items, since every rank must make the same ones."""

    def forward(self, inputs: Mapping[str, Tensor], features: Sequence[int]) -> Tensor:
        """Return (N, W), the features of all items one after another, so many of each."""
        raise NotImplementedError

    def init_tensor(self, name: str, tensor: Tensor, generator: Generator) -> None:
        """Fill one parameter in place, as ``TrainModel.init_tensor`` does, by the name that it has in this module."""
        draw_default(name, tensor, generator)


class Projector(nn.Module):
    """Turns features into hidden states; an item gets as many as ``ProjectorComponent.tokens`` says.

    With ``levels`` it makes so many more vectors of each token: the first of them is added to its hidden state behind the first
    block of the model, the second behind the second (DeepStack, https://arxiv.org/abs/2406.04334).
    """

    levels: int = 0

    def forward(self, features_NW: Tensor, features: Sequence[int], grids: Sequence[Grid | None]) -> Tensor:
        """(N, W) -> (M, D), or (M, (1 + levels) * D); ``features`` are those of each item."""
        raise NotImplementedError

    def init_tensor(self, name: str, tensor: Tensor, generator: Generator) -> None:
        """Fill one parameter in place, as ``TrainModel.init_tensor`` does, by the name that it has in this module."""
        draw_default(name, tensor, generator)


Level = tuple[Tensor, Tensor]
"""Flat places of media, and what is added there behind blocks: (M,), (M, levels, D)."""


def add_levels(hidden_BTD: Tensor, index: int, levels: Sequence[Level]) -> Tensor:
    """(B, T, D) -> (B, T, D): what comes out of the block of this index, with what projectors add there."""
    for places_M, vectors_MLD in levels:
        if index < vectors_MLD.shape[1]:
            hidden_BTD = hidden_BTD.flatten(0, 1).index_add(0, places_M, vectors_MLD[:, index]).view_as(hidden_BTD)
    return hidden_BTD


def draw_default(name: str, tensor: Tensor, generator: Generator) -> None:
    """Fill a parameter: vectors named ``*.weight`` are 1, other vectors 0, the rest normal with standard deviation 0.02."""
    if tensor.dim() >= 2:
        tensor.normal_(0.0, 0.02, generator=generator)
    else:
        tensor.fill_(1.0 if name.endswith("weight") else 0.0)
