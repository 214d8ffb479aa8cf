"""Names of Hugging Face, for reading and for writing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ARCHITECTURES = {1: "GemmaForCausalLM", 2: "Gemma2ForCausalLM", 3: "Gemma3ForCausalLM"}
"""Generation → their class."""
MODEL_TYPES = {1: "gemma", 2: "gemma2", 3: "gemma3_text"}
MULTIMODAL = "Gemma3ForConditionalGeneration"
"""4b, 12b and 27b of the third generation: a text model under ``text_config``, and a vision tower."""

NAMES = {
    "vocab_size": "vocab_size",
    "hidden_size": "dim",
    "intermediate_size": "ffn_dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "head_dim": "head_dim",
    "max_position_embeddings": "max_seq_len",
    "rms_norm_eps": "norm_eps",
}
"""Their key → ours, in every generation."""
LATER_NAMES = {
    "query_pre_attn_scalar": "query_scalar",
    "sliding_window": "window",
    "attn_logit_softcapping": "attention_softcap",
    "final_logit_softcapping": "final_softcap",
}
"""The same, from the second generation on; here ``null`` means off."""

_SHARED: Mapping[str, Any] = {"head_dim": 256, "rms_norm_eps": 1e-6}
_LATER: Mapping[str, Any] = {
    **_SHARED,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
DEFAULTS: Mapping[int, Mapping[str, Any]] = {
    1: {
        **_SHARED,
        "vocab_size": 256_000,
        "hidden_size": 3072,
        "intermediate_size": 24_576,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "max_position_embeddings": 8192,
    },
    2: {
        **_LATER,
        "vocab_size": 256_000,
        "max_position_embeddings": 8192,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    3: {**_LATER, "vocab_size": 262_208, "max_position_embeddings": 131_072},
}
"""Values that transformers takes for keys that ``config.json`` leaves out."""
GLOBAL_EVERY = {2: 2, 3: 6}
"""The same, for which blocks are global."""

FIXED: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("gelu_pytorch_tanh", "gelu", None),  # Google's first files say gelu and mean its tanh form
    "hidden_activation": ("gelu_pytorch_tanh", None),
    "attention_bias": (False, None),
    "attention_dropout": (0, None),
    "tie_word_embeddings": (True, None),
    "use_bidirectional_attention": (False, None),
    "is_causal": (True,),
    "quantization_config": (None,),
    "per_layer_config": (None, {}),
}
"""Keys that change the maths or the encoding, and the values that this family has."""

PREFIXES = {"language_model.model.": "model.", "model.language_model.": "model.", "language_model.lm_head.": "lm_head."}
"""How the text model's tensors begin in a multimodal file (old, new), and here."""
VISION = (
    "vision_tower.*",
    "multi_modal_projector.*",
    "model.vision_tower.*",
    "model.multi_modal_projector.*",
)
"""Tensors that see images, and are left out."""
