"""The shape of a DNABERT-2 as a typed config, its published size, and its vocabularies. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, model_validator

from mt_plugin_bio.bpe import FolderVocabulary
from mt_plugin_bio.sequences import SequenceConfig, Vocabulary, built_blocks, shape_of
from mt_plugin_bio.vocabularies import DNA, CharacterVocabulary, KmerVocabulary, kmers, numbered

SPECIALS = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
CLS, SEP = 1, 2


@dataclass(frozen=True, kw_only=True)
class BertShape:
    """Width, blocks, heads, and width between the two matrices of the MLP."""

    dim: int
    n_layers: int
    n_heads: int
    ffn_dim: int


SIZES: Mapping[str, BertShape] = {
    "tiny": BertShape(dim=64, n_layers=2, n_heads=4, ffn_dim=128),  # ours: for a first run on a CPU
    "117m": BertShape(
        dim=768, n_layers=12, n_heads=12, ffn_dim=3072
    ),  # https://huggingface.co/zhihan1996/DNABERT-2-117M
}
PUBLISHED_ROWS = 4096


class DNABERT2Config(SequenceConfig):
    """A size, or another one where its numbers are given. A model that is drawn needs no file: its ids are k-mers or letters."""

    size: Literal["tiny", "117m"] = Field(
        "tiny",
        description="size, of which the numbers below are taken where they are not given; 117m is the published one",
    )
    dim: int | None = Field(None, ge=1, le=65_536, description="width of the hidden states and of a feature")
    n_layers: int | None = Field(None, ge=1, le=1000, description="blocks")
    n_heads: int | None = Field(None, ge=1, le=1024, description="attention heads")
    ffn_dim: int | None = Field(None, ge=1, le=262_144, description="width between the matrices of the MLP")
    vocab_size: int | None = Field(
        None, ge=1, le=1_000_000, description="rows of the embedding; those that the vocabulary needs without"
    )
    vocabulary: Literal["bpe", "kmer", "character"] | None = Field(
        None,
        description="what an id stands for: byte pairs (those of weights or tokenizer, where one is given), k bases, a letter",
    )
    k: int = Field(6, ge=1, le=8, description="bases of a k-mer")
    tokenizer: str | None = Field(
        None, description="folder with the tokenizer.json of byte pairs; that of weights without"
    )

    @property
    def shape(self) -> BertShape:
        """The numbers that hold."""
        return shape_of(SIZES[self.size], self)

    @property
    def blocks(self) -> int:
        """Blocks that are built."""
        return built_blocks(self.layer, self.shape.n_layers)

    @property
    def units(self) -> Literal["bpe", "kmer", "character"]:
        """What an id stands for."""
        return self.vocabulary or ("bpe" if self.tokenizer or self.weights else "kmer")

    @property
    def rows(self) -> int:
        """Rows of the embedding."""
        needed = {
            "bpe": PUBLISHED_ROWS,
            "kmer": len(SPECIALS) + 4**self.k + len(DNA),
            "character": len(SPECIALS) + len(DNA),
        }
        return self.vocab_size or needed[self.units]

    def build_vocabulary(self) -> Vocabulary:
        """Return what makes ids of letters."""
        letters = DNA.decode()
        if self.units == "bpe":
            return FolderVocabulary(self.tokenizer or self.weights or "")
        if self.units == "character":
            ids = numbered(*SPECIALS, *letters)
            return CharacterVocabulary({letter: ids[letter] for letter in letters}, (CLS,), (SEP,))
        return KmerVocabulary(numbered(*SPECIALS, *kmers(self.k, "ACGT"), *letters), self.k, (CLS,), (SEP,))

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        shape = self.shape
        assert self.blocks >= 0, "there is such a layer"
        if shape.dim % shape.n_heads:
            raise ValueError(f"dim={shape.dim} is not a multiple of n_heads={shape.n_heads}; set n_heads to a divisor")
        if self.units == "bpe" and not (self.tokenizer or self.weights):
            raise ValueError(
                "vocabulary=bpe needs a folder with tokenizer.json; set tokenizer or weights, or vocabulary to kmer"
            )
        if (
            self.k > 1
            and self.units == "kmer"
            and self.vocab_size
            and self.vocab_size < len(SPECIALS) + 4**self.k + len(DNA)
        ):
            raise ValueError(
                f"vocab_size={self.vocab_size} is less than the {len(SPECIALS) + 4**self.k + len(DNA)} ids of k={self.k}; lower k"
            )
        return self
