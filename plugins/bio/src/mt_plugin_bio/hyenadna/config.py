"""The shape of a HyenaDNA as a typed config, its published sizes, and its letters. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from mt_plugin_bio.sequences import SequenceConfig, Shape, shape_of
from mt_plugin_bio.vocabularies import CharacterVocabulary, numbered

IDS: Mapping[str, int] = numbered("[CLS]", "[SEP]", "[BOS]", "[MASK]", "[PAD]", "[RESERVED]", "[UNK]", *"ACGTN")
CLS, SEP = IDS["[CLS]"], IDS["[SEP]"]
VOCABULARY_ROWS = 16
"""Ids, padded to a multiple of 8."""
FRAMES: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "sep": ((), (SEP,)),
    "cls-sep": ((CLS,), (SEP,)),
    "none": ((), ()),
}
"""Frame → ids before and behind a sequence."""


@dataclass(frozen=True, kw_only=True)
class HyenaShape(Shape):
    """Width, blocks, and ids of the longest input, from which the filters' positions follow."""

    l_max: int


SIZES: Mapping[str, HyenaShape] = {
    # config.json of https://huggingface.co/LongSafari/hyenadna-SIZE-seqlen
    "tiny-1k": HyenaShape(dim=128, n_layers=2, l_max=1026),
    "small-32k": HyenaShape(dim=256, n_layers=4, l_max=32_770),
    "medium-160k": HyenaShape(dim=256, n_layers=8, l_max=160_002),
    "medium-450k": HyenaShape(dim=256, n_layers=8, l_max=450_002),
    "large-1m": HyenaShape(dim=256, n_layers=8, l_max=1_000_002),
}


class HyenaDNAConfig(SequenceConfig):
    """A published size, or another one where its numbers are given."""

    size: Literal["tiny-1k", "small-32k", "medium-160k", "medium-450k", "large-1m"] = Field(
        "tiny-1k", description="published size, of which the numbers below are taken where they are not given"
    )
    l_max: int | None = Field(
        None, ge=3, le=2**31, description="ids of the longest input, for which the filters are made"
    )
    frame: Literal["sep", "cls-sep", "none"] = Field(
        "sep", description="ids around a sequence: [SEP] behind it, as in the -hf folders; [CLS] … [SEP]; none"
    )

    @property
    def shape(self) -> HyenaShape:
        """The numbers that hold."""
        return shape_of(SIZES[self.size], self)

    @property
    def most_letters(self) -> int:
        """Letters that fit between the ids that frame them."""
        return self.shape.l_max - sum(map(len, FRAMES[self.frame]))

    def build_vocabulary(self) -> CharacterVocabulary:
        """Return what makes ids of letters."""
        before, behind = FRAMES[self.frame]
        return CharacterVocabulary({letter: IDS[letter] for letter in "ACGTN"}, before, behind)
