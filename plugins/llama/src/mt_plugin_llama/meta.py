"""Llama in Meta's own format: ``params.json`` and ``consolidated.NN.pth``, one file a model-parallel rank.

Sources: https://github.com/meta-llama/llama-models (args.py, model.py), and which layer is split how in fairscale's
``ColumnParallelLinear`` / ``RowParallelLinear`` / ``ParallelEmbedding``
(https://github.com/facebookresearch/fairscale/blob/main/fairscale/nn/model_parallel/layers.py).

Shapes: D model width, N heads, H head width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError

from mt_core import MtConfig, WeightsError, WeightsFormat
from mt_core.weights import Loaders, check_file, contained_file, open_pickle, read_json, without_tied_head

from .config import LlamaConfig
from .shapes import EMBEDDING, HEAD, parameter_shapes
from .variants import VARIANTS

if TYPE_CHECKING:
    from torch import Tensor

_OUTSIDE = {"tok_embeddings.weight": EMBEDDING, "norm.weight": "model.norm.weight", "output.weight": HEAD}
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

_SENTENCEPIECE_VOCABULARY = 32_000
"""Llama 1 and 2 write ``vocab_size: -1``: their tokenizer has this many."""

_RUNTIME_ONLY = {"max_batch_size", "model_parallel_size"}
"""Keys of ``params.json`` that say how Meta's own code runs it, and nothing about the model."""


class MetaParams(MtConfig):
    """``params.json``, of Llama 1 to 3.3. A key that is not here (vision, LoRA, quantisation) is refused by name."""

    dim: int = Field(gt=0, le=1_048_576, description="width of the hidden states (channels)")
    n_layers: int = Field(gt=0, le=10_000, description="blocks")
    n_heads: int = Field(gt=0, le=65_536, description="query heads")
    n_kv_heads: int | None = Field(None, gt=0, le=65_536, description="key/value heads; default n_heads")
    vocab_size: int = Field(-1, ge=-1, le=16_777_216, description="tokens; -1 is that of the tokenizer")
    multiple_of: int = Field(
        256, gt=0, le=16_777_216, description="the MLP's width is rounded up to a multiple of this (channels)"
    )
    ffn_dim_multiplier: float | None = Field(None, gt=0, description="factor of the MLP's width")
    norm_eps: float = Field(1e-5, gt=0, lt=1, description="added to the mean square in RMSNorm")
    rope_theta: float = Field(10_000.0, gt=1, description="base of the rotary wavelengths")
    use_scaled_rope: bool = Field(False, description="llama3 scaling of the rotary positions")
    rope_scaling_factor: float | None = Field(None, ge=1, description="its factor (ratio)")
    rope_high_freq_factor: float | None = Field(None, gt=1, description="its high_freq_factor (ratio)")
    max_seq_len: int | None = Field(None, gt=0, le=1_073_741_824, description="context (tokens)")


def matches(path: Path) -> bool:
    """Return whether a folder has parameters and weights of this format."""
    return (path / "params.json").is_file() and any(path.glob("consolidated.*.pth"))


def values(path: Path) -> Mapping[str, Any]:
    """The shape in ``params.json``. What it does not say (context, tied head) is that of the published size it equals."""
    params = _params(path / "params.json")
    shape: dict[str, Any] = {
        "vocab_size": params.vocab_size if params.vocab_size > 0 else _SENTENCEPIECE_VOCABULARY,
        "dim": params.dim,
        "n_layers": params.n_layers,
        "n_heads": params.n_heads,
        "n_kv_heads": params.n_kv_heads or params.n_heads,
        "ffn_dim": _ffn_dim(params),
        "norm_eps": params.norm_eps,
        "rope_theta": params.rope_theta,
    }
    for file in _files(path):
        check_file(contained_file(path, file))
    unsaid = _published_fields(shape, scaled=params.use_scaled_rope) or _guess_fields(params, shape["vocab_size"])
    return {**shape, **unsaid, **({} if params.max_seq_len is None else {"max_seq_len": params.max_seq_len})}


def _params(file: Path) -> MetaParams:
    given = {key: value for key, value in read_json(file).items() if key not in _RUNTIME_ONLY}
    try:
        return MetaParams(**given)
    except (ValidationError, TypeError) as error:
        faults = error.errors() if isinstance(error, ValidationError) else []
        said = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults) or str(error)
        raise WeightsError(f"{file} is no params.json of a text-only Llama: {said}. Give other weights") from error


def _ffn_dim(params: MetaParams) -> int:
    """Meta's rule: two thirds of 4 D, times the multiplier, rounded up."""
    hidden = int(2 * (4 * params.dim) / 3)
    if params.ffn_dim_multiplier is not None:
        hidden = int(params.ffn_dim_multiplier * hidden)
    return params.multiple_of * ((hidden + params.multiple_of - 1) // params.multiple_of)


def _published_fields(shape: Mapping[str, Any], *, scaled: bool) -> dict[str, Any] | None:
    """Return what the published size of this shape says beyond ``params.json``: 3.2's factor 32, for one, stands nowhere in it."""
    for variant in VARIANTS.values():
        is_scaled = variant.get("rope_scaling", {}).get("type") == "llama3"
        if is_scaled == scaled and all(variant[key] == value for key, value in shape.items()):
            return {key: value for key, value in variant.items() if key not in shape}
    return None


def _guess_fields(params: MetaParams, vocabulary: int) -> dict[str, Any]:
    """Guess for a shape that was never published: the context by generation, and Llama 3.1's scaling where there is one."""
    if params.use_scaled_rope:
        scaling = {
            "type": "llama3",
            "factor": params.rope_scaling_factor or 8.0,
            "original_max_seq_len": 8192,
            "low_freq_factor": 1.0,
            "high_freq_factor": params.rope_high_freq_factor or 4.0,
        }
        return {"max_seq_len": 131_072, "rope_scaling": scaling}
    if vocabulary > 100_000:
        return {"max_seq_len": 8192}
    if params.rope_theta > 10_000:
        return {"max_seq_len": 16_384}  # Code Llama (https://arxiv.org/abs/2308.12950)
    return {"max_seq_len": 2048 if params.norm_eps < 5e-6 else 4096}  # Llama 1 has 1e-6, Llama 2 has 1e-5


# ------------------------------------------------------------------------------------------------------------- tensors


def tensors(path: Path, config: LlamaConfig) -> Loaders:
    """One loader a parameter: the shards joined, queries and keys reordered for the half layout of rotary positions."""
    shards = _shards(path)
    loaders: Loaders = {}
    for name in shards[0]:
        if name == "rope.freqs":
            continue  # follows from the config
        ours = our_name(name)
        if ours is None:
            raise WeightsError(f"{path} holds {name!r}, which is no tensor of a Llama; is this another model?")
        loaders[ours] = _loader([shard[name] for shard in shards], name, ours, config)
    return without_tied_head(loaders, path, embedding=EMBEDDING, head=HEAD) if config.tie_embeddings else loaders


def _shards(path: Path) -> list[Loaders]:
    """All ranks' tensors, in order. Raises ``WeightsError`` where a file is absent or holds other names."""
    wanted = _files(path)
    shards = [open_pickle(contained_file(path, name)) for name in wanted]
    for file, shard in zip(wanted, shards, strict=True):
        if odd := sorted(set(shard) ^ set(shards[0])):
            raise WeightsError(
                f"{path / file} and {wanted[0]} differ in the tensors {', '.join(odd)}; fetch them again"
            )
    return shards


def _files(path: Path) -> list[str]:
    """All ranks' files, in order. Raises ``WeightsError`` where one is absent."""
    files = sorted(path.glob("consolidated.*.pth"))
    wanted = [f"consolidated.{rank:02d}.pth" for rank in range(len(files))]
    if [file.name for file in files] != wanted:
        raise WeightsError(
            f"{path} has {', '.join(file.name for file in files)}; the ranks are numbered from 00 without a gap: "
            "fetch the missing files"
        )
    return wanted


def our_name(name: str) -> str | None:
    """The parameter's name here, or ``None``."""
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    parts = name.split(".", 2)
    if len(parts) == 3 and parts[0] == "layers" and parts[1].isascii() and parts[1].isdigit() and parts[2] in _INSIDE:
        return f"model.layers.{parts[1]}.{_INSIDE[parts[2]]}"
    return None


def _loader(pieces: list[Callable[[], Tensor]], name: str, ours: str, config: LlamaConfig) -> Callable[[], Tensor]:
    wanted = parameter_shapes(config.model_copy(update={"tie_embeddings": False})).get(ours)
    heads = {"wq": config.n_heads, "wk": config.n_kv_heads}.get(name.split(".")[-2])

    def load() -> Tensor:
        whole = _join(name, [piece() for piece in pieces], config)
        # A tensor of another shape goes on as it is: the model lists all that do not fit.
        return halves(whole, heads) if heads is not None and tuple(whole.shape) == wanted else whole

    return load


def _join(name: str, pieces: list[Tensor], config: LlamaConfig) -> Tensor:
    import torch

    if len(pieces) == 1:
        return pieces[0]
    if pieces[0].dim() == 1:
        if not all(torch.equal(piece, pieces[0]) for piece in pieces):
            raise WeightsError(f"{name} differs among the ranks' files, which all hold it whole; fetch them again")
        return pieces[0]
    if name == "tok_embeddings.weight":  # Llama 1 and 2 split the width, Llama 3 the vocabulary
        return torch.cat(pieces, 0 if pieces[0].shape[1] == config.dim else 1)
    return torch.cat(pieces, 1 if name.endswith(_SPLIT_INPUTS) else 0)


def halves(weight: Tensor, heads: int) -> Tensor:
    """(N·H, D) with each pair of channels side by side -> the same with first halves before second halves."""
    rows, width = weight.shape
    return weight.view(heads, rows // heads // 2, 2, width).transpose(1, 2).reshape(rows, width)


META = WeightsFormat(name="meta", matches=matches, values=values, tensors=tensors)
