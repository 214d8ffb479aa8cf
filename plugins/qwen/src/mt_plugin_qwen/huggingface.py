"""Folders of Hugging Face's Qwen2ForCausalLM, Qwen3ForCausalLM and Qwen3MoeForCausalLM, read and described.

What the keys mean, and what holds where one is missing: Qwen2Config, Qwen3Config and Qwen3MoeConfig of transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core import WeightsError
from mt_core.weights import FIXED, KEYS, Architecture, Loaders, decoder_format, layer_types, listed_experts

from .config import QwenConfig

if TYPE_CHECKING:
    from torch import Tensor


def _read(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Blocks from ``max_window_layers`` on have the window, when it is used at all."""
    count, start = config["num_hidden_layers"], config.get("max_window_layers", 28)
    window = config.get("sliding_window", 4096) if config.get("use_sliding_window") else None
    used = {} if window is None or start >= count else {"window": window, "window_from": start}
    kinds = layer_types(window if used and index >= start else None for index in range(count))
    if config.get("layer_types") not in (None, kinds):
        raise WeightsError(
            f"{file} has layer_types={config['layer_types']}; supported here: {kinds}, as max_window_layers says"
        )
    return used


def _read_second(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Published configs of generation 2 leave the width of a head to be computed."""
    head = config["head_dim"] or config["hidden_size"] // config["num_attention_heads"]
    return {"head_dim": head, **_read(config, file)}


def _write(config: QwenConfig) -> dict[str, Any]:
    return {
        "use_sliding_window": config.window is not None,
        "sliding_window": config.window,
        "max_window_layers": config.n_layers if config.window is None else config.window_from,
        "layer_types": layer_types(config.window_of(index) for index in range(config.n_layers)),
    }


def _read_mixture(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Releases 4 and 5 name the number of experts differently, and leave out a width of heads that is computed.

    The balance loss is used where ``output_router_logits`` is on.
    """
    experts = config.get("num_experts") or config.get("num_local_experts")
    if experts is None:
        raise WeightsError(f"{file} lacks num_experts; take the config.json that was published with the weights")
    window = config.get("sliding_window", 4096) if config.get("use_sliding_window") else None
    if window is not None and config.get("max_window_layers"):
        raise WeightsError(
            f"{file} has a window from block {config['max_window_layers']} on, which releases of transformers read differently for"
            " mixtures; set max_window_layers to 0, or use_sliding_window to false"
        )
    used = config["router_aux_loss_coef"] if config.get("output_router_logits") else 0.0
    return {
        "head_dim": config["head_dim"] or config["hidden_size"] // config["num_attention_heads"],
        "n_experts": experts,
        "window": window,
        "expert_step": config["decoder_sparse_step"],
        "dense_blocks": tuple(config.get("mlp_only_layers") or ()),
        "balance": used * config["num_experts_per_tok"],
    }


def _write_mixture(config: QwenConfig) -> dict[str, Any]:
    """Their balance loss counts each of a token's choices as one, ours all of them together."""
    return {
        "num_experts": config.n_experts,
        "decoder_sparse_step": config.expert_step,
        "mlp_only_layers": list(config.dense_blocks),
        "output_router_logits": config.balance > 0,
        "router_aux_loss_coef": config.balance / config.top_k if config.balance else BALANCE,
        "use_sliding_window": config.window is not None,
        "sliding_window": config.window,
        "max_window_layers": config.n_layers if config.window is None else 0,
    }


def written(config: QwenConfig, loaders: Mapping[str, Callable[[], Tensor]]) -> Loaders:
    """The tensors of a folder: every expert by itself."""
    return listed_experts(loaders, config.expert_layouts)


BALANCE = 0.001
"""``router_aux_loss_coef`` where nothing is said."""
MIXTURE_KEYS = {
    **KEYS,
    "moe_intermediate_size": "expert_dim",
    "num_experts_per_tok": "top_k",
    "norm_topk_prob": "normalise",
}
ARCHITECTURES = (
    Architecture(
        name="Qwen2ForCausalLM",
        model_type="qwen2",
        ours={"generation": 2},
        defaults={"tie_word_embeddings": False, "head_dim": None},
        read=_read_second,
        write=_write,
    ),
    Architecture(
        name="Qwen3ForCausalLM",
        model_type="qwen3",
        ours={"generation": 3, "n_experts": None},
        defaults={"tie_word_embeddings": False},
        fixed={**FIXED, "attention_bias": (False, None)},
        read=_read,
        write=_write,
    ),
    Architecture(
        name="Qwen3MoeForCausalLM",
        model_type="qwen3_moe",
        ours={"generation": 3},
        keys=MIXTURE_KEYS,
        defaults={
            "tie_word_embeddings": False,
            "head_dim": None,
            "norm_topk_prob": False,
            "decoder_sparse_step": 1,
            "router_aux_loss_coef": BALANCE,
        },
        fixed={**FIXED, "attention_bias": (False, None)},
        read=_read_mixture,
        write=_write_mixture,
    ),
)
HUGGINGFACE = replace(decoder_format(*ARCHITECTURES), written=written)
