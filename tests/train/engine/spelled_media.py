"""A plugin whose encoder reads words of letters, for tests of layouts: its projector makes a hidden state of every two of them.

Shapes: N letters of all words, W width of a feature, M pairs, D model width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from mt_core import ANY, DataError, ObjectiveComponent, Row, Sample, begin_ids, hookimpl
from mt_core.config.base import MtConfig
from mt_core.media import (
    MEDIA_MARK,
    Arrays,
    EncoderComponent,
    EncoderConfig,
    EncodesMedia,
    Grid,
    Measured,
    MediaItem,
    MediaPart,
    ProjectorComponent,
)
from mt_core.nn import Encoder, Projector, TokenObjective
from mt_core.protocols import Template, Tokenizer

LETTERS = "abcdefgh"
READS: list[MediaItem] = []
"""Every item that was read in this process."""


class LettersConfig(EncoderConfig):
    """The shape."""

    width: int = Field(6, gt=0, le=1024, description="width of a feature (channels)")
    n_layers: int = Field(2, ge=0, le=8, description="blocks, one on top of the other")


class LettersProcessor:
    """Words are their letters, each a feature."""

    def measure(self, part: MediaPart) -> Measured:
        if not part.content:
            raise DataError(f"{part.place}: an empty word")
        return Measured(len(part.content), None, part.content[:8].ljust(8))

    def read(self, item: MediaItem) -> Arrays:
        READS.append(item)
        return {"letters": np.array([LETTERS.index(chr(each)) for each in item.content], np.int64)}

    def dummy(self) -> tuple[Measured, Arrays]:
        return Measured(2, None, b""), {"letters": np.zeros(2, np.int64)}


class Attention(nn.Module):
    """Names that decoders have as well: an adapter's defaults must not take them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q_proj = nn.Linear(width, width)

    def forward(self, x_NW: Tensor) -> Tensor:
        return x_NW + torch.tanh(self.q_proj(x_NW))


class Letters(Encoder):
    """A row of a table for each letter, and blocks above it."""

    def __init__(self, config: LettersConfig) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), config.width)
        self.layers = nn.ModuleList(Attention(config.width) for _ in range(config.n_layers))

    def forward(self, inputs: Mapping[str, Tensor], features: Sequence[int]) -> Tensor:
        assert len(inputs["letters"]) == sum(features)
        x_NW = self.letters(inputs["letters"])
        for layer in self.layers:
            x_NW = layer(x_NW)
        return x_NW

    def init_tensor(self, name: str, tensor: Tensor, generator: torch.Generator) -> None:
        tensor.normal_(0.0, 0.5, generator=generator)


class PairsConfig(MtConfig):
    """Nothing to say."""


class Pairs(Projector):
    """Every two letters of a word, added up; a last one may be alone."""

    def __init__(self, source: int, target: int) -> None:
        super().__init__()
        self.linear = nn.Linear(source, target)

    def forward(self, features_NW: Tensor, features: Sequence[int], grids: Sequence[Grid | None]) -> Tensor:
        pairs = [_pairs(count) for count in features]
        starts = np.cumsum([0, *pairs])
        rows_N = np.concatenate(
            [start + np.arange(count) // 2 for start, count in zip(starts[:-1], features, strict=True)]
        )
        sums_MW = features_NW.new_zeros(int(starts[-1]), features_NW.shape[1])
        return self.linear(sums_MW.index_add(0, torch.from_numpy(rows_N), features_NW))

    def init_tensor(self, name: str, tensor: Tensor, generator: torch.Generator) -> None:
        tensor.normal_(0.0, 0.5, generator=generator)


def _pairs(count: int) -> int:
    return -(-count // 2)


class Spelled(TokenObjective):
    """Rows ``{"parts": [text, word, text, …]}``: every second part is a word that the encoder reads."""

    def __init__(self, tokenizer: Tokenizer, template: Template, **figures: Any) -> None:
        super().__init__(pad_id=tokenizer.pad_id or 0, **figures)
        self._template, self._begin = template, begin_ids(tokenizer)

    def encode(self, row: Row) -> Sample:
        parts = list(row["parts"])
        text = "".join(MEDIA_MARK if number % 2 else part for number, part in enumerate(parts))
        words = [MediaPart("word", content=part.encode(), place=row["id"]) for part in parts[1::2]]
        assert isinstance(self._template, EncodesMedia), "the run has an encoder"
        return self._template.encode_text(text, words, begin=self._begin, end=()).sample(row["id"])


@hookimpl
def mt_encoders() -> list[EncoderComponent]:
    return [
        EncoderComponent(
            name="letters",
            config=LettersConfig,
            build=Letters,
            reads=frozenset({"word"}),
            width=lambda config: config.width,
            processor=lambda config: LettersProcessor(),
            summary="words of letters",
        )
    ]


@hookimpl
def mt_projectors() -> list[ProjectorComponent]:
    return [
        ProjectorComponent(
            name="pairs",
            config=PairsConfig,
            build=lambda config, source, target: Pairs(source, target),
            tokens=lambda config, features, grid: _pairs(features),
            summary="a hidden state of every two letters",
        )
    ]


@hookimpl
def mt_objectives() -> list[ObjectiveComponent]:
    return [
        ObjectiveComponent(
            name="spelled",
            build=lambda config, tokenizer, template: Spelled(tokenizer, template),
            layouts=ANY,
            summary="the next token of texts with words in them",
        )
    ]
