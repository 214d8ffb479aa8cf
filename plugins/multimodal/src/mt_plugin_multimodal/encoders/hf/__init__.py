"""Encoders of transformers by their own code, chosen by the model type of their folder: ``hf-audio``, ``hf-image``, ``hf-sequence``.

transformers is an extra (``mt-plugin-multimodal[hf]``), imported when such an encoder is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mt_core.media import EncoderComponent, Processor

from .config import HfAudioConfig, HfConfig, HfImageConfig, HfSequenceConfig
from .weights import hf_format

if TYPE_CHECKING:
    from torch import nn


def _build(config: HfConfig, **_: Any) -> nn.Module:
    from .module import ENCODERS

    return ENCODERS[config.kind](config)


def _processor(config: HfConfig) -> Processor:
    return config.make_processor()


def _width(config: HfConfig) -> int:
    return config.width


def _component(config: type[HfConfig], reads: Sequence[str], summary: str) -> EncoderComponent:
    return EncoderComponent(
        name=f"hf-{config.kind}",
        config=config,
        build=_build,
        reads=frozenset(reads),
        width=_width,
        processor=_processor,
        formats=(hf_format(config.kind),),
        summary=summary,
        source="https://huggingface.co/docs/transformers",
    )


COMPONENTS = (
    _component(
        HfAudioConfig,
        ["audio"],
        "encoders of raw sound of transformers by their own code: HuBERT, wav2vec 2.0, WavLM",
    ),
    _component(
        HfImageConfig,
        ["image"],
        "vision models of transformers by their own code: BEiT, CLIP, DeiT, DINOv2, DINOv3, I-JEPA, SigLIP, ViT",
    ),
    _component(
        HfSequenceConfig,
        ["dna", "protein", "rna"],
        "encoders of sequences of transformers by their own code: BERT, ELECTRA, ESM, ModernBERT, RoBERTa",
    ),
)
