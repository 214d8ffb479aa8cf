"""The shape of a DNABERT-2 as a typed config, its published size, and its vocabularies. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from pydantic import Field

from mt_plugin_bio.bpe import FolderVocabulary
from mt_plugin_bio.sequences import AttentionConfig, AttentionShape, Vocabulary
from mt_plugin_bio.vocabularies import DNA, CharacterVocabulary, KmerVocabulary, kmers, numbered

SPECIALS = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
CLS, SEP = 1, 2

SIZES: Mapping[str, AttentionShape] = {
    "tiny": AttentionShape(dim=64, n_layers=2, n_heads=4, ffn_dim=128),  # ours: for a first run on a CPU
    "117m": AttentionShape(
        dim=768, n_layers=12, n_heads=12, ffn_dim=3072
    ),  # https://huggingface.co/zhihan1996/DNABERT-2-117M
}
PUBLISHED_ROWS = 4096
Units = Literal["bpe", "kmer", "character"]
NEEDED: Mapping[Units, Callable[[int], int]] = {
    "bpe": lambda k: 0,
    "kmer": lambda k: len(SPECIALS) + 4**k + len(DNA),
    "character": lambda k: len(SPECIALS) + len(DNA),
}
"""Vocabulary → rows that its ids need, by the k of k-mers; how many byte pairs there are, their file says."""


class DNABERT2Config(AttentionConfig):
    """A size, or another one where its numbers are given. A model that is drawn needs no file: its ids are k-mers or letters."""

    sizes = SIZES
    size: Literal["tiny", "117m"] = Field(
        "tiny",
        description="size, of which the numbers below are taken where they are not given; 117m is the published one",
    )
    vocab_size: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="rows of the embedding; without, those that k-mers or letters need, or 4,096 for byte pairs",
    )
    vocabulary: Units | None = Field(
        None,
        description="what an id stands for: byte pairs (those of weights or tokenizer, where one is given), k bases, a letter",
    )
    k: int = Field(6, ge=1, le=8, description="bases of a k-mer")
    tokenizer: str | None = Field(
        None, description="folder with the tokenizer.json of byte pairs; that of weights without"
    )

    @property
    def units(self) -> Units:
        """Units of the sequence that an id stands for."""
        return self.vocabulary or ("bpe" if self.tokenizer or self.weights else "kmer")

    @property
    def rows(self) -> int:
        """Rows of the embedding."""
        return self.vocab_size or NEEDED[self.units](self.k) or PUBLISHED_ROWS

    def build_vocabulary(self) -> Vocabulary:
        """Return what makes ids of letters."""
        letters = DNA.decode()
        if self.units == "bpe":
            return FolderVocabulary(self.tokenizer or self.weights or "", self.rows)
        if self.units == "character":
            ids = numbered(*SPECIALS, *letters)
            return CharacterVocabulary({letter: ids[letter] for letter in letters}, (CLS,), (SEP,))
        return KmerVocabulary(numbered(*SPECIALS, *kmers(self.k, "ACGT"), *letters), self.k, (CLS,), (SEP,))

    def faults(self) -> Iterator[str]:
        """Yield what does not fit together."""
        yield from super().faults()
        shape = self.shape
        if shape.dim % shape.n_heads:
            yield f"dim={shape.dim} is not a multiple of n_heads={shape.n_heads}; set n_heads to a divisor"
        if self.units == "bpe" and not (self.tokenizer or self.weights):
            yield "vocabulary=bpe needs a folder with tokenizer.json; set tokenizer or weights, or vocabulary to kmer"
        if self.vocab_size is not None and self.vocab_size < (needed := NEEDED[self.units](self.k)):
            yield f"vocab_size={self.vocab_size:,} is less than the {needed:,} ids of vocabulary {self.units}; raise it, or lower k"
