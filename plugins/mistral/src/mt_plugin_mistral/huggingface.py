"""Folders of Hugging Face's MistralForCausalLM, MinistralForCausalLM and MixtralForCausalLM, read and described.

What the keys mean, and what holds where one is missing: MistralConfig, MinistralConfig and MixtralConfig of transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core.weights import (
    FIXED,
    KEYS,
    Architecture,
    Loaders,
    decoder_format,
    decoder_tensors,
    listed_experts,
    read_windows,
    write_windows,
)

from .config import MistralConfig

if TYPE_CHECKING:
    from torch import Tensor

DEFAULTS: Mapping[str, Any] = {
    "head_dim": None,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "sliding_window": 4096,
}


MISTRAL = Architecture(
    name="MistralForCausalLM",
    model_type="mistral",
    ours={"window_pattern": ("window",), "n_experts": None},
    defaults=DEFAULTS,
    read=read_windows,  # with layer_types, transformers' AutoConfig makes it a Ministral
    write=lambda config: {"sliding_window": config.window},
)
MINISTRAL = Architecture(
    name="MinistralForCausalLM",
    model_type="ministral",
    ours={"n_experts": None},
    defaults=DEFAULTS,
    read=read_windows,
    write=write_windows,
)


# ------------------------------------------------------------------------------------------------------------- mixtral


def _read_mixture(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """The balance loss is used where ``output_router_logits`` is on. Theirs counts each of a token's choices as one, ours all of
    them together."""
    used = config["router_aux_loss_coef"] if config.get("output_router_logits") else 0.0
    return {"window": config.get("sliding_window"), "balance": used * config["num_experts_per_tok"]}


def _write_mixture(config: MistralConfig) -> dict[str, Any]:
    return {
        "sliding_window": config.window,
        "output_router_logits": config.balance > 0,
        "router_aux_loss_coef": config.balance / config.top_k if config.balance else BALANCE,
    }


IN_FILES, HERE = ".block_sparse_moe.", ".mlp."
"""Names of the module of a block's experts, in files and in the model."""


def tensors(path: Path, config: MistralConfig) -> Loaders:
    """One loader a tensor."""
    loaders = decoder_tensors(path, config)
    return {name.replace(IN_FILES, HERE): load for name, load in loaders.items()}


def written(config: MistralConfig, loaders: Mapping[str, Callable[[], Tensor]]) -> Loaders:
    """The tensors of a folder: every expert by itself."""
    if config.n_experts is None:
        return dict(loaders)
    listed = listed_experts(loaders, config.expert_layouts)
    return {name.replace(HERE, IN_FILES): load for name, load in listed.items()}


BALANCE = 0.001
"""``router_aux_loss_coef`` where nothing is said."""
MIXTRAL = Architecture(
    name="MixtralForCausalLM",
    model_type="mixtral",
    keys={**KEYS, "num_local_experts": "n_experts", "num_experts_per_tok": "top_k"},
    defaults={
        **DEFAULTS,
        "rms_norm_eps": 1e-5,
        "sliding_window": None,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "router_aux_loss_coef": BALANCE,
        "rope_theta": 1e6,
    },
    fixed={**FIXED, "router_jitter_noise": (0.0, None)},
    read=_read_mixture,
    write=_write_mixture,
)
ARCHITECTURES = (MISTRAL, MINISTRAL, MIXTRAL)
HUGGINGFACE = replace(decoder_format(*ARCHITECTURES, tensors=tensors), written=written)
