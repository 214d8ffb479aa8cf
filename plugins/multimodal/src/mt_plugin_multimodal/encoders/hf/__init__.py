"""Encoders of transformers by their own code, chosen by the model type of their folder: ``hf-audio``, ``hf-image``, ``hf-sequence``.

transformers is an extra (``mt-plugin-multimodal[hf]``), imported when such an encoder is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mt_core.media import EncoderComponent, Processor

from .config import HfAudioConfig, HfConfig, HfImageConfig, HfSequenceConfig
from .weights import hf_format

if TYPE_CHECKING:
    from torch import nn

_SOURCE = "https://huggingface.co/docs/transformers"


def _build(config: HfConfig, **_: Any) -> nn.Module:
    from .module import build_module

    return build_module(config)


def _processor(config: HfAudioConfig | HfImageConfig | HfSequenceConfig) -> Processor:
    return config.make_processor()


def _width(config: HfConfig) -> int:
    return config.width


COMPONENTS = (
    EncoderComponent(
        name="hf-audio",
        config=HfAudioConfig,
        build=_build,
        reads=frozenset({"audio"}),
        width=_width,
        processor=_processor,
        formats=(hf_format("audio"),),
        summary="encoders of raw sound of transformers by their own code: HuBERT, wav2vec 2.0, WavLM",
        source=_SOURCE,
    ),
    EncoderComponent(
        name="hf-image",
        config=HfImageConfig,
        build=_build,
        reads=frozenset({"image"}),
        width=_width,
        processor=_processor,
        formats=(hf_format("image"),),
        summary="vision models of transformers by their own code: BEiT, CLIP, DeiT, DINOv2, DINOv3, I-JEPA, SigLIP, ViT",
        source=_SOURCE,
    ),
    EncoderComponent(
        name="hf-sequence",
        config=HfSequenceConfig,
        build=_build,
        reads=frozenset({"dna", "protein", "rna"}),
        width=_width,
        processor=_processor,
        formats=(hf_format("sequence"),),
        summary="encoders of sequences of transformers by their own code: BERT, ELECTRA, ESM, ModernBERT, RoBERTa",
        source=_SOURCE,
    ),
)
