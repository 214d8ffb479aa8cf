"""Parameters of a Llama, and their shapes, by arithmetic: for files of weights, without building a model."""

from __future__ import annotations

from .config import LlamaConfig

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"

Shape = tuple[int, ...]


def parameter_shapes(config: LlamaConfig) -> dict[str, Shape]:
    """Name → shape of every parameter of ``Llama(config)``; a tied head is not one."""
    shapes: dict[str, Shape] = {EMBEDDING: (config.vocab_size, config.dim)}
    block = _block_shapes(config)
    for index in range(config.n_layers):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in block.items()}
    shapes["model.norm.weight"] = (config.dim,)
    return shapes if config.tie_embeddings else shapes | {HEAD: (config.vocab_size, config.dim)}


def _block_shapes(config: LlamaConfig) -> dict[str, Shape]:
    dim, ffn = config.dim, config.ffn_dim
    heads, kv_heads = config.n_heads * config.head_width, config.n_kv_heads * config.head_width
    attention = {"q_proj": (heads, dim), "k_proj": (kv_heads, dim), "v_proj": (kv_heads, dim), "o_proj": (dim, heads)}
    mlp = {"gate_proj": (ffn, dim), "up_proj": (ffn, dim), "down_proj": (dim, ffn)}
    return {
        **_linear("self_attn", attention, bias=config.attention_bias),
        **_linear("mlp", mlp, bias=config.mlp_bias),
        "input_layernorm.weight": (dim,),
        "post_attention_layernorm.weight": (dim,),
    }


def _linear(prefix: str, projections: dict[str, tuple[int, int]], *, bias: bool) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {f"{prefix}.{name}.weight": shape for name, shape in projections.items()}
    return shapes | ({f"{prefix}.{name}.bias": shape[:1] for name, shape in projections.items()} if bias else {})
