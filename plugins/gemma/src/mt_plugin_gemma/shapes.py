"""Parameters of a Gemma, and their shapes, by arithmetic: for files of weights, without building a model."""

from __future__ import annotations

from .config import GemmaConfig

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"

Shape = tuple[int, ...]

_NORMS = ("input_layernorm", "post_attention_layernorm")
_POST_NORMS = ("pre_feedforward_layernorm", "post_feedforward_layernorm")
_HEAD_NORMS = ("self_attn.q_norm", "self_attn.k_norm")


def parameter_shapes(config: GemmaConfig) -> dict[str, Shape]:
    """Name → shape of every parameter of ``Gemma(config)``; the head, which is tied, is not one."""
    shapes: dict[str, Shape] = {EMBEDDING: (config.vocab_size, config.dim)}
    block = _block_shapes(config)
    for index in range(config.n_layers):
        shapes |= {f"model.layers.{index}.{name}.weight": shape for name, shape in block.items()}
    return shapes | {"model.norm.weight": (config.dim,)}


def _block_shapes(config: GemmaConfig) -> dict[str, Shape]:
    dim, ffn = config.dim, config.ffn_dim
    heads, kv_heads = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    norms = (*_NORMS, *(_POST_NORMS if config.generation >= 2 else ()))
    return {
        "self_attn.q_proj": (heads, dim),
        "self_attn.k_proj": (kv_heads, dim),
        "self_attn.v_proj": (kv_heads, dim),
        "self_attn.o_proj": (dim, heads),
        "mlp.gate_proj": (ffn, dim),
        "mlp.up_proj": (ffn, dim),
        "mlp.down_proj": (dim, ffn),
        **dict.fromkeys(norms, (dim,)),
        **(dict.fromkeys(_HEAD_NORMS, (config.head_dim,)) if config.generation >= 3 else {}),
    }
