"""Shapes of ESM-2 and of Nucleotide Transformer v2 as typed configs, their published sizes, and their ids. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from mt_core import WeightsError
from mt_core.weights import contained_file
from mt_plugin_bio.sequences import AttentionConfig, AttentionShape
from mt_plugin_bio.vocabularies import DNA, CharacterVocabulary, KmerVocabulary, kmers, numbered


@dataclass(frozen=True, kw_only=True)
class EsmForm:
    """Differences of the two models: ``gated`` MLPs without biases; the factor of embeddings, and what norms add to a variance."""

    gated: bool
    scale: float
    eps: float


class EsmConfig(AttentionConfig):
    """Options of both models."""

    form: ClassVar[EsmForm]
    half_frequencies: bool = Field(
        False,
        description="rotary frequencies are rounded to fp16, as those of folders that were trained with such; folders say so",
    )

    @property
    def rows(self) -> int:
        """Rows of the embedding."""
        raise NotImplementedError

    def faults(self) -> Iterator[str]:
        """Yield what does not fit together."""
        yield from super().faults()
        if self.shape.dim % (pairs := 2 * self.shape.n_heads):
            yield (
                f"dim={self.shape.dim} is not a multiple of 2 · n_heads={pairs}, and the channels of a head turn in pairs;"
                " set n_heads to a divisor of half of dim"
            )


def _esm2(dim: int, n_layers: int, n_heads: int) -> AttentionShape:
    return AttentionShape(dim=dim, n_layers=n_layers, n_heads=n_heads, ffn_dim=4 * dim)


ESM2_SIZES: Mapping[str, AttentionShape] = {
    "tiny": _esm2(64, 2, 4),  # ours: for a first run on a CPU
    # config.json of https://huggingface.co/facebook/esm2_t6_8M_UR50D and its like
    "8m": _esm2(320, 6, 20),
    "35m": _esm2(480, 12, 20),
    "150m": _esm2(640, 30, 20),
    "650m": _esm2(1280, 33, 20),
    "3b": _esm2(2560, 36, 40),
    "15b": _esm2(5120, 48, 40),
}
RESIDUES = "LAGVSERTIDPKQNFYMHWCXBUZO"
"""Twenty amino acids from the most frequent to the least, then X (any), B and Z (either of two), U and O (rare)."""
ESM2_IDS: Mapping[str, int] = numbered("<cls>", "<pad>", "<eos>", "<unk>", *RESIDUES, ".", "-", "<null_1>", "<mask>")


class ESM2Config(EsmConfig):
    """ESM-2 (https://doi.org/10.1126/science.ade2574). Masked ids were left out of its training's embeddings, which makes them smaller:
    1 − 0.15 · 0.8 of each remains, in use too."""

    form = EsmForm(gated=False, scale=0.88, eps=1e-5)
    sizes = ESM2_SIZES
    size: Literal["tiny", "8m", "35m", "150m", "650m", "3b", "15b"] = Field(
        "tiny",
        description="size, of which the numbers below are taken where they are not given; all but tiny are published ones",
    )

    @property
    def rows(self) -> int:
        """Rows of the embedding."""
        return len(ESM2_IDS)

    def build_vocabulary(self) -> CharacterVocabulary:
        """Return what makes ids of letters."""
        return CharacterVocabulary(
            {each: ESM2_IDS[each] for each in RESIDUES}, (ESM2_IDS["<cls>"],), (ESM2_IDS["<eos>"],)
        )


NUCLEOTIDE_SIZES: Mapping[str, AttentionShape] = {
    "tiny": AttentionShape(dim=64, n_layers=2, n_heads=4, ffn_dim=128),  # ours
    # config.json of https://huggingface.co/InstaDeepAI/nucleotide-transformer-v2-SIZE-multi-species
    "50m": AttentionShape(dim=512, n_layers=12, n_heads=16, ffn_dim=2048),
    "100m": AttentionShape(dim=512, n_layers=22, n_heads=16, ffn_dim=2048),
    "250m": AttentionShape(dim=768, n_layers=24, n_heads=16, ffn_dim=3072),
    "500m": AttentionShape(dim=1024, n_layers=29, n_heads=16, ffn_dim=4096),
}
K = 6
SPECIALS = ("<unk>", "<pad>", "<mask>", "<cls>", "<eos>", "<bos>")
VOCABULARY_FILE = "vocab.txt"


class NucleotideTransformerConfig(EsmConfig):
    """Nucleotide Transformer v2 (https://doi.org/10.1038/s41592-024-02523-z). Ids are those of the folder's ``vocab.txt``."""

    form = EsmForm(gated=True, scale=1.0, eps=1e-12)
    sizes = NUCLEOTIDE_SIZES
    size: Literal["tiny", "50m", "100m", "250m", "500m"] = Field(
        "tiny",
        description="size, of which the numbers below are taken where they are not given; all but tiny are published ones",
    )
    vocab_size: int = Field(
        len(SPECIALS) + 4**K + len(DNA), ge=1, le=1_000_000, description="rows of the embedding; a folder says its own"
    )

    @property
    def rows(self) -> int:
        """Rows of the embedding."""
        return self.vocab_size

    def build_vocabulary(self) -> KmerVocabulary:
        """Return what makes ids of letters."""
        own = numbered(*SPECIALS, *kmers(K, "ATCG"), *"ATCGN")
        ids = read_vocabulary(Path(self.weights), self.rows) if self.weights else own
        return KmerVocabulary(ids, K, (ids["<cls>"],))


def read_vocabulary(path: Path, rows: int) -> dict[str, int]:
    """Return the tokens of a folder's ``vocab.txt`` with their ids: one a line. Raises ``WeightsError`` where any is missing."""
    file = contained_file(path if path.is_dir() else path.parent, VOCABULARY_FILE)
    try:
        ids = numbered(*file.read_text("ascii").split())
    except UnicodeDecodeError as error:
        raise WeightsError(f"{file} is no text in ASCII: {error}; fetch it again") from error
    missing = [token for token in ("<cls>", *DNA.decode(), *kmers(K, "ACGT")) if ids.get(token, rows) >= rows]
    if missing:
        raise WeightsError(
            f"{file} lacks {len(missing):,} of the tokens of 6-mers and letters, {missing[0]} among them, or has more tokens than the"
            f" embedding has rows, {rows:,}; fetch it again"
        )
    return ids
