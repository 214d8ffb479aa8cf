"""Small random models of any type of transformers, with values that no default is: a value that is lost on the way shows.

``content(kind)`` is a ``config.json``; ``model(kind)`` transformers' own model of it, with eager attention, norms away from 1.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

VOCABULARY, LAYERS, LONGEST = 272, 3, 96
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), 4),
    "num_key_value_heads": 2,
    "head_dim": 8,
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "dff", "ffn_hidden_size"), 48),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "model_max_length"), LONGEST),
    **dict.fromkeys(("sliding_window", "local_attention"), 6),
    **dict.fromkeys(
        (
            "moe_intermediate_size",
            "shared_expert_intermediate_size",
            "expert_ffn_hidden_size",
            "moe_shared_expert_intermediate_size",
        ),
        16,
    ),
    **dict.fromkeys(("shared_intermediate_size", "moe_shared_intermediate_size", "intermediate_size_mlp"), 24),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(
        ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_top_k", "moe_topk", "router_top_k"), 2
    ),
    **dict.fromkeys(("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"), 1),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace", "num_zero_experts", "zero_expert_num"), 1),
    **dict.fromkeys(("num_expert_group", "num_dense_layers"), 1),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "attention_chunk_size"), 4),
    **dict.fromkeys(("v_head_dim", "swa_v_head_dim"), 6),
    **dict.fromkeys(("qk_head_dim", "swa_head_dim", "global_head_dim"), 8),
    "swa_num_attention_heads": 4,
    **dict.fromkeys(("swa_num_key_value_heads", "num_global_key_value_heads"), 2),
    **dict.fromkeys(("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers"), 0),
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.15,
    # states
    **dict.fromkeys(("linear_num_key_heads", "mamba_n_groups", "n_groups"), 2),
    **dict.fromkeys(("linear_num_heads", "linear_num_value_heads", "mamba_n_heads", "mamba_num_heads"), 4),
    **dict.fromkeys(
        (
            "linear_head_dim",
            "linear_key_head_dim",
            "linear_value_head_dim",
            "state_size",
            "mamba_d_state",
            "ssm_state_size",
        ),
        8,
    ),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim"), 16),
    **dict.fromkeys(("mamba_expand", "expand"), 2),
    **dict.fromkeys(("linear_conv_kernel_dim", "conv_kernel", "mamba_d_conv", "conv_L_cache"), 3),
    **dict.fromkeys(("mamba_chunk_size", "chunk_size", "time_step_rank", "mamba_dt_rank"), 4),
    "mamba_d_ssm": 64,
    "lru_width": 32,
    "block_size": 8,
}
"""Values by key, where a type has it. The window is shorter than the rows."""

EXTRA: dict[str, dict[str, Any]] = {
    "cohere": {"logit_scale": 0.3},
    "cohere2": {"logit_scale": 0.3},
    "gemma2": {"query_pre_attn_scalar": 24, "final_logit_softcapping": 5.0, "attn_logit_softcapping": 4.0},
    "gemma4_unified_text": {
        "per_layer_config": {str(layer): {"head_dim": 16} for layer in range(1, LAYERS)},
        "final_logit_softcapping": 5.0,
    },
    "bamba": {"attn_layer_indices": [1]},
    "codegen": {"rotary_dim": 4},
    "falcon": {"num_kv_heads": 2, "new_decoder_architecture": True},
    "falcon_h1": {
        "embedding_multiplier": 2.0,
        "lm_head_multiplier": 0.5,
        "key_multiplier": 0.7,
        "attention_out_multiplier": 0.8,
        "ssm_multipliers": [0.5, 0.6, 0.7, 0.8, 0.9],
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1], [["global"], 1]], "window_size": 6},
    "gptj": {"rotary_dim": 4},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "granite": {
        "logits_scaling": 3.0,
        "embedding_multiplier": 2.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.2,
    },
    "granitemoehybrid": {
        "logits_scaling": 3.0,
        "embedding_multiplier": 2.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.2,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
    "jamba": {"attn_layer_period": 3, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"]},
    "minimax": {
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "full_attn_alpha_factor": 1.5,
        "linear_attn_beta_factor": 0.7,
        "mlp_alpha_factor": 0.8,
    },
    "modernbert-decoder": {"pad_token_id": 0},
    "nemotron_h": {"layers_block_type": ["linear_attention", "moe", "full_attention"]},
    "recurrent_gemma": {"block_types": ["recurrent", "attention", "recurrent"]},
    "llama4_text": {"no_rope_layers": [1, 0, 1], "floor_scale": 5, "attn_scale": 0.5},
    "ministral": {"head_dim": 8},
    "mistral": {"sliding_window": 6},
    "phi3": {"sliding_window": 6},
    "qwen2": {"use_sliding_window": True, "max_window_layers": 1},
    "qwen3": {"use_sliding_window": True, "max_window_layers": 1},
    "olmo": {"clip_qkv": 1.5},
    "gpt_neox": {"rotary_pct": 0.5, "use_parallel_residual": True},
    "smollm3": {"no_rope_layer_interval": 2},
    "deepseek_v2": {"num_experts_per_tok": 2, "topk_method": "greedy", "n_group": None, "topk_group": None},
    "dots1": {"num_experts_per_tok": 2, "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 2, "topk_group": 1},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "mixtral": {"router_jitter_noise": 0.2},
    "phimoe": {"router_jitter_noise": 0.3, "input_jitter_noise": 0.2, "sliding_window": 6},
    "nemotron": {"num_key_value_heads": 2, "head_dim": 8},
    "vaultgemma": {"query_pre_attn_scalar": 24, "final_logit_softcapping": 5.0, "attn_logit_softcapping": 4.0},
}
"""Type → values of its own: what scales, caps and limits."""


_NOISE = re.compile(r"drop")
_COMPUTED = re.compile(r"_decay$|slope_rate$")
"""Saved buffers that follow from the config: others would be another rule for tokens one by one than for a text."""

BY_LENGTH = ("dynamic", "longrope")
"""Rotary scalings that hang on how long a text is."""
ORIGINAL = 10
"""Tokens up to which they change nothing."""


def rope_of(config: Any, scaling: str) -> dict[str, Any]:
    """Changes of a config for one of ``BY_LENGTH``, with factors that differ for each frequency."""
    rope: dict[str, Any] = {**config.rope_parameters, "rope_type": scaling, "factor": 4.0}
    if scaling == "dynamic":
        return {"rope_parameters": rope, "max_position_embeddings": ORIGINAL}
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    count = int(head * rope.get("partial_rotary_factor", 1.0)) // 2
    rope |= {
        "short_factor": [1 + 0.1 * each for each in range(count)],
        "long_factor": [2.0 + each for each in range(count)],
    }
    original = {"original_max_position_embeddings": ORIGINAL}
    outside = original if hasattr(config, "original_max_position_embeddings") else {}
    return {"rope_parameters": {**rope, **original}, **outside}


def config_of(kind: str, rope: str | None = None) -> Any:
    """A config of this type."""
    cls = CONFIG_MAPPING[kind]
    given = cls().to_dict()
    named = {key: value for key, value in SMALL.items() if key in given and (given[key] is not None or value is None)}
    types = given.get("layer_types")
    if isinstance(types, list | tuple) and types:
        kinds = list(dict.fromkeys(types))
        named["layer_types"] = (kinds * LAYERS)[:LAYERS]
    for key in ("mlp_layer_types", "hybrid_layer_pattern", "no_rope_layers"):
        listed = given.get(key)
        if isinstance(listed, list | tuple) and listed:
            named[key] = (list(dict.fromkeys(listed)) * LAYERS)[:LAYERS]
    if "qk_rope_head_dim" in given and given.get("head_dim") is None:
        named.pop("head_dim", None)
    elif "qk_rope_head_dim" in given:
        named["head_dim"] = 4
    if "kv_lora_rank" in given:
        named["num_key_value_heads"] = 4
    named |= {key: 0.0 for key, value in given.items() if _NOISE.search(key) and isinstance(value, float)}
    named |= EXTRA.get(kind, {})
    return cls(**named) if rope is None else cls(**{**named, **rope_of(cls(**named), rope)})


def content(kind: str, **changes: Any) -> dict[str, Any]:
    """A ``config.json``."""
    config = config_of(kind)
    written: dict[str, Any] = config._encode_special_floats(config.to_diff_dict())  # as transformers writes infinity
    named = {config.attribute_map.get(key, key): value for key, value in changes.items()}
    return {**written, "model_type": kind, **named}


def model(kind: str, seed: int = 0, rope: str | None = None) -> PreTrainedModel:
    """Transformers' own, with eager attention, every vector and saved buffer away from its first value."""
    torch.manual_seed(seed)
    built = AutoModelForCausalLM.from_config(
        config_of(kind, rope), attn_implementation="eager", experts_implementation="eager"
    )
    with torch.no_grad():
        saved = built.state_dict()
        vectors = [each for each in built.parameters() if each.dim() == 1]
        buffers = [each for name, each in built.named_buffers() if name in saved and not _COMPUTED.search(name)]
        for each in [*vectors, *buffers]:
            each.add_(torch.randn_like(each) * 0.2)
    return built.float().eval()  # without the noise of routers
