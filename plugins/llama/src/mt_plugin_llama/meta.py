"""Llama in Meta's own format: ``params.json`` and ``consolidated.NN.pth``, one file a model-parallel rank.

Sources: https://github.com/meta-llama/llama-models (model.py, and which layer is split how in fairscale's
``ColumnParallelLinear`` / ``RowParallelLinear``).

Shapes: D model width, N heads, H head width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core import WeightsError, WeightsFormat

from .config import LlamaConfig
from .files import Loaders, contained, pickled, read_json

if TYPE_CHECKING:
    from torch import Tensor

_OUTSIDE = {
    "tok_embeddings.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_INSIDE = {
    "attention.wq.weight": "self_attn.q_proj.weight",
    "attention.wk.weight": "self_attn.k_proj.weight",
    "attention.wv.weight": "self_attn.v_proj.weight",
    "attention.wo.weight": "self_attn.o_proj.weight",
    "feed_forward.w1.weight": "mlp.gate_proj.weight",
    "feed_forward.w2.weight": "mlp.down_proj.weight",
    "feed_forward.w3.weight": "mlp.up_proj.weight",
    "attention_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
}
_SPLIT_INPUTS = ("attention.wo.weight", "feed_forward.w2.weight")
"""Split among ranks by their second dimension; other matrices by their first."""

SENTENCEPIECE_VOCABULARY = 32_000
"""Llama 1 and 2 write ``vocab_size: -1``: their tokenizer has this many."""


def matches(path: Path) -> bool:
    """Whether a folder has parameters and weights of this format."""
    return (path / "params.json").is_file() and any(path.glob("consolidated.*.pth"))


def values(path: Path) -> Mapping[str, Any]:
    """The shape in ``params.json``; the context, which it does not say, follows from the generation's other values."""
    given = read_json(path / "params.json")
    try:
        dim, heads = int(given["dim"]), int(given["n_heads"])
        layers, eps = int(given["n_layers"]), float(given["norm_eps"])
    except KeyError as error:
        raise WeightsError(f"{path / 'params.json'} lacks {error}; it is no Llama's params.json") from error
    theta, scaled = float(given.get("rope_theta", 10_000.0)), bool(given.get("use_scaled_rope", False))
    vocabulary = int(given.get("vocab_size", -1))
    shape: dict[str, Any] = {
        "vocab_size": vocabulary if vocabulary > 0 else SENTENCEPIECE_VOCABULARY,
        "max_seq_len": _context(theta, eps, scaled),
        "dim": dim,
        "n_layers": layers,
        "n_heads": heads,
        "n_kv_heads": int(given.get("n_kv_heads") or heads),
        "ffn_dim": _ffn_dim(dim, int(given.get("multiple_of", 256)), given.get("ffn_dim_multiplier")),
        "norm_eps": eps,
        "rope_theta": theta,
    }
    if scaled:
        factor = float(given.get("rope_scaling_factor") or 8.0)
        shape["rope_scaling"] = {"type": "llama3", "factor": factor, "original_max_seq_len": 8192}
    return shape


def _context(theta: float, eps: float, scaled: bool) -> int:
    if scaled:
        return 131_072
    if theta >= 500_000:
        return 8192
    return 2048 if eps < 5e-6 else 4096  # Llama 1 has 1e-6, Llama 2 has 1e-5


def _ffn_dim(dim: int, multiple_of: int, multiplier: float | None) -> int:
    """Meta's rule: two thirds of 4 D, times the multiplier, rounded up."""
    hidden = int(2 * (4 * dim) / 3)
    if multiplier is not None:
        hidden = int(multiplier * hidden)
    return multiple_of * ((hidden + multiple_of - 1) // multiple_of)


def tensors(path: Path, config: LlamaConfig) -> Loaders:
    """One loader a parameter: the shards joined, queries and keys reordered for the half layout of rotary positions."""
    shards = [contained(path, file.name) for file in sorted(path.glob("consolidated.*.pth"))]
    names = [name for name in pickled(shards[0]) if name != "rope.freqs"]
    loaders: Loaders = {}
    for name in names:
        ours = our_name(name)
        if ours is None:
            raise WeightsError(f"{shards[0]} holds {name!r}, which is no tensor of a Llama; is this another model?")
        if not (config.tie_embeddings and ours == "lm_head.weight"):
            loaders[ours] = _loader(shards, name, config)
    return loaders


def our_name(name: str) -> str | None:
    """The parameter's name here, or ``None``."""
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    parts = name.split(".", 2)
    if len(parts) == 3 and parts[0] == "layers" and parts[1].isdigit() and parts[2] in _INSIDE:
        return f"model.layers.{parts[1]}.{_INSIDE[parts[2]]}"
    return None


def _loader(shards: list[Path], name: str, config: LlamaConfig) -> Callable[[], Tensor]:
    def load() -> Tensor:
        pieces = [pickled(shard)[name] for shard in shards]
        whole = _joined(name, pieces, config)
        if name.endswith("wq.weight"):
            return halves(whole, config.n_heads)
        return halves(whole, config.n_kv_heads) if name.endswith("wk.weight") else whole

    return load


def _joined(name: str, pieces: list[Tensor], config: LlamaConfig) -> Tensor:
    import torch

    if len(pieces) == 1 or pieces[0].dim() == 1:  # norms are the same on every rank
        return pieces[0]
    if name == "tok_embeddings.weight":  # Llama 1 and 2 split the width, Llama 3 the vocabulary
        return torch.cat(pieces, 0 if pieces[0].shape[1] == config.dim else 1)
    return torch.cat(pieces, 1 if name.endswith(_SPLIT_INPUTS) else 0)


def halves(weight: Tensor, heads: int) -> Tensor:
    """(N·H, D) with each pair of channels side by side -> the same with first halves before second halves."""
    rows, width = weight.shape
    return weight.view(heads, rows // heads // 2, 2, width).transpose(1, 2).reshape(rows, width)


META = WeightsFormat(name="meta", matches=matches, values=values, tensors=tensors)
