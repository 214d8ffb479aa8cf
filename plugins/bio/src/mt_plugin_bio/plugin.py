"""Says what the plugin offers; holds no logic, imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mt_core import ANY, Component, WeightsFormat, hookimpl
from mt_core.media import EncoderComponent

from .dnabert2.config import DNABERT2Config
from .dnabert2.folder import DNABERT2
from .esm.config import ESM2Config, EsmConfig, NucleotideTransformerConfig
from .esm.folder import ESM2, NUCLEOTIDE_TRANSFORMER
from .hyenadna.config import HyenaDNAConfig
from .hyenadna.folder import HYENADNA
from .sequences import Kind, SequenceConfig, SequenceProcessor

if TYPE_CHECKING:
    from mt_core.nn import Encoder


@hookimpl
def mt_encoders() -> list[EncoderComponent]:
    return [
        _component(
            "hyenadna",
            HyenaDNAConfig,
            _hyenadna,
            HYENADNA,
            summary="HyenaDNA: up to a million letters, causal long convolutions",
            source="https://arxiv.org/abs/2306.15794",
        ),
        _component(
            "dnabert2",
            DNABERT2Config,
            _dnabert2,
            DNABERT2,
            summary="DNABERT-2: byte pairs, k-mers or letters, bidirectional attention with ALiBi",
            source="https://arxiv.org/abs/2306.15006",
        ),
        _component(
            "nucleotide-transformer",
            NucleotideTransformerConfig,
            _esm,
            NUCLEOTIDE_TRANSFORMER,
            summary="Nucleotide Transformer v2: 6-mers, bidirectional attention with rotary positions",
            source="https://doi.org/10.1038/s41592-024-02523-z",
        ),
        _component(
            "esm2",
            ESM2Config,
            _esm,
            ESM2,
            reads="protein",
            summary="ESM-2: amino acids, bidirectional attention with rotary positions",
            source="https://doi.org/10.1126/science.ade2574",
        ),
    ]


def _component(
    name: str,
    config: type[SequenceConfig],
    build: Callable[[Any], Encoder],
    form: WeightsFormat,
    *,
    summary: str,
    source: str,
    reads: Kind = "dna",
) -> EncoderComponent:
    return EncoderComponent(
        name=name,
        config=config,
        build=build,
        reads=frozenset({reads}),
        width=lambda config: config.shape.dim,
        processor=lambda config: SequenceProcessor(reads, config.build_vocabulary(), config),
        formats=(form,),
        summary=summary,
        source=source,
        layouts=ANY,
    )


def _hyenadna(config: HyenaDNAConfig) -> Encoder:
    from .hyenadna.encoder import HyenaDNA  # torch loads here, when a run has chosen it

    return HyenaDNA(config)


def _dnabert2(config: DNABERT2Config) -> Encoder:
    from .dnabert2.encoder import DNABERT2

    return DNABERT2(config)


def _esm(config: EsmConfig) -> Encoder:
    from .esm.encoder import EsmEncoder

    return EsmEncoder(config)


@hookimpl
def mt_recipes() -> list[Component]:
    return [
        Component(
            name="dna-caption", summary="what a sequence of DNA is, in words, over HyenaDNA; of 1B on a GPU of 8 GB"
        ),
    ]
