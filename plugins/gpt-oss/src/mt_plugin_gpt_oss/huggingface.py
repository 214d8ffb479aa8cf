"""Folders of Hugging Face's GptOssForCausalLM, in MXFP4 as published or in plain tensors.

What the keys mean, and what holds where one is missing: GptOssConfig of transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core import WeightsError
from mt_core.weights import (
    FIXED,
    KEYS,
    Architecture,
    Loaders,
    decoder_format,
    fused_experts,
    layer_types,
    load_rows,
    open_folder,
    without_tied_head,
)

from .config import GptOssConfig

if TYPE_CHECKING:
    from torch import Tensor

QUANTISED = "mxfp4"
BLOCKS, SCALES = "_blocks", "_scales"
"""Ends of the names of the two parts of a tensor that is stored in MXFP4."""


def read_more(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return after how many blocks a global one comes, as ``layer_types`` says; refuse bits that are not MXFP4's."""
    method = (config.get("quantization_config") or {"quant_method": QUANTISED}).get("quant_method")
    if method != QUANTISED:
        raise WeightsError(f"{file} has weights quantised by {method!r}; this family reads {QUANTISED!r} or none")
    kinds = config.get("layer_types")
    if kinds is None:
        return {"global_every": 2}
    every = kinds.index("full_attention") + 1 if "full_attention" in kinds else len(kinds) + 1
    if kinds != layer_types(1 if index % every else None for index in range(1, config["num_hidden_layers"] + 1)):
        raise WeightsError(
            f"{file} has layer_types={kinds}; supported are num_hidden_layers={config['num_hidden_layers']} of"
            " 'sliding_attention', of which each so-many-th is 'full_attention'"
        )
    return {"global_every": every}


def write_more(config: GptOssConfig) -> dict[str, Any]:
    """Return their key for the blocks' windows."""
    return {"layer_types": layer_types(config.window_of(index) for index in range(config.n_layers))}


YARN: Mapping[str, Any] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""Rotary parameters that transformers takes where a file has none."""
GPT_OSS = Architecture(
    name="GptOssForCausalLM",
    model_type="gpt_oss",
    keys={
        **KEYS,
        "num_local_experts": "n_experts",
        "num_experts_per_tok": "top_k",
        "swiglu_alpha": "swiglu_alpha",
        "swiglu_limit": "swiglu_limit",
        "sliding_window": "window",
    },
    defaults={
        "swiglu_alpha": 1.702,  # the published files leave it out
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "rope_theta": 150_000.0,
        "rope_parameters": YARN,
    },
    fixed={
        **{key: FIXED[key] for key in FIXED if key != "quantization_config"},
        "attention_bias": (True, None),
        "output_router_logits": (False, None),
    },
    read=read_more,
    write=write_more,
)


def tensors(path: Path, config: GptOssConfig) -> Loaders:
    """One loader a tensor; the names are the model's, without what says that a tensor is in MXFP4."""
    loaders = _dequantised(open_folder(path), path)
    if not config.tie_embeddings:
        return loaders
    return without_tied_head(loaders, path, embedding="model.embed_tokens.weight", head="lm_head.weight")


def _dequantised(loaders: Loaders, path: Path) -> Loaders:
    """Replace the two parts of each tensor in MXFP4 by the tensor that they stand for."""
    parts = {name for name in loaders if name.endswith((BLOCKS, SCALES))}
    stems = sorted({name.removesuffix(BLOCKS).removesuffix(SCALES) for name in parts})
    if lacking := [stem for stem in stems if not {stem + BLOCKS, stem + SCALES} <= parts]:
        raise WeightsError(
            f"{path} lacks {BLOCKS} or {SCALES} of {', '.join(lacking)}, which MXFP4 needs both; fetch the files again"
        )
    whole = {name: load for name, load in loaders.items() if name not in parts}
    return whole | {stem: Mxfp4Loader(stem, path, loaders[stem + BLOCKS], loaders[stem + SCALES]) for stem in stems}


@dataclass(frozen=True, eq=False)
class Mxfp4Loader:
    """Loads a tensor that is stored in MXFP4, or some experts of it."""

    name: str
    path: Path
    blocks: Callable[[], Tensor]
    scales: Callable[[], Tensor]

    def __call__(self) -> Tensor:
        """Load all experts, (X, I, O) in bf16."""
        return self._dequantise(self.blocks(), self.scales())

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole."""
        experts, outputs, groups, half = getattr(self.blocks, "shape", None) or self.blocks().shape
        return experts, groups * half * 2, outputs

    def rows(self, start: int, end: int) -> Tensor:
        """Load the experts from ``start`` up to ``end``."""
        return self._dequantise(load_rows(self.blocks, start, end), load_rows(self.scales, start, end))

    def _dequantise(self, blocks: Tensor, scales: Tensor) -> Tensor:
        from .mxfp4 import dequantise

        if blocks.dim() != 4 or blocks.shape[:3] != scales.shape or blocks.shape[3] != 16:
            raise WeightsError(
                f"{self.path} has {self.name}{BLOCKS} of {tuple(blocks.shape)} and {SCALES} of {tuple(scales.shape)}; MXFP4"
                " has (experts, outputs, groups, 16) and (experts, outputs, groups). Fetch the files again"
            )
        return dequantise(blocks, scales)


def written(config: GptOssConfig, loaders: Mapping[str, Callable[[], Tensor]]) -> Loaders:
    """The published names: experts are fused, whatever form the model has."""
    return fused_experts(loaders, config.expert_layouts)


HUGGINGFACE = replace(decoder_format(GPT_OSS, tensors=tensors), written=written)
