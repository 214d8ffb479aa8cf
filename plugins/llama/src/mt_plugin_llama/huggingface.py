"""Llama in Hugging Face's format: ``config.json`` and safetensors (or ``.bin``), whole or in shards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core import WeightsError, WeightsFormat

from .config import LlamaConfig, RopeScaling
from .files import Loaders, contained, pickled_loaders, read_json, safetensors_loaders

if TYPE_CHECKING:
    from torch import Tensor

SHARD_BYTES = 4 * 10**9
"""Largest file that is written."""

WHOLE = ("model.safetensors", "pytorch_model.bin")
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")

_NAMES = {
    "vocab_size": "vocab_size",
    "hidden_size": "dim",
    "intermediate_size": "ffn_dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "max_position_embeddings": "max_seq_len",
    "rms_norm_eps": "norm_eps",
    "tie_word_embeddings": "tie_embeddings",
    "attention_bias": "attention_bias",
    "mlp_bias": "mlp_bias",
}
"""Their key → ours, where nothing but the name differs."""

_ROPE_NAMES = {
    "factor": "factor",
    "original_max_position_embeddings": "original_max_seq_len",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "attention_factor": "attention_factor",
    "mscale": "mscale",
    "mscale_all_dim": "mscale_all_dim",
    "truncate": "truncate",
}
_ROPE_TYPES = {"default": "none", "linear": "linear", "dynamic": "dynamic", "yarn": "yarn", "llama3": "llama3"}


def matches(path: Path) -> bool:
    """Whether a folder has a config and weights of this format."""
    return (path / "config.json").is_file() and any((path / name).is_file() for name in (*WHOLE, *INDEXES))


def values(path: Path) -> Mapping[str, Any]:
    """The shape in ``config.json``. Raises ``WeightsError`` for another architecture or a feature that is not ours."""
    config = read_json(path / "config.json")
    found = config.get("architectures") or [config.get("model_type")]
    if not set(found) & {"LlamaForCausalLM", "llama"}:
        raise WeightsError(
            f"{path / 'config.json'} describes {', '.join(map(str, found))}; this family reads LlamaForCausalLM"
        )
    if config.get("hidden_act", "silu") != "silu":
        raise WeightsError(f"{path / 'config.json'} has hidden_act={config['hidden_act']!r}; Llama here has silu only")
    shape = {ours: config[theirs] for theirs, ours in _NAMES.items() if theirs in config}
    shape["n_kv_heads"] = config.get("num_key_value_heads") or shape["n_heads"]
    if config.get("head_dim") is not None and config["head_dim"] * shape["n_heads"] != shape["dim"]:
        shape["head_dim"] = config["head_dim"]
    shape["norm_eps"] = float(config.get("rms_norm_eps", 1e-6))
    return shape | _rope(path, config)


def _rope(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Old configs have ``rope_theta`` and ``rope_scaling``, those of transformers 5 one ``rope_parameters``."""
    given = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = float(given.pop("rope_theta", None) or config.get("rope_theta") or 10_000.0)
    old = given.pop("type", None)
    kind = given.pop("rope_type", None) or old or "default"
    if kind not in _ROPE_TYPES:
        raise WeightsError(
            f"{path / 'config.json'} has rotary scaling {kind!r}; this family knows {', '.join(_ROPE_TYPES)}"
        )
    if unknown := sorted(set(given) - set(_ROPE_NAMES) - {"partial_rotary_factor"}):
        raise WeightsError(
            f"{path / 'config.json'} has rotary parameters that this family does not know: {', '.join(unknown)}"
        )
    if given.pop("partial_rotary_factor", 1.0) != 1.0:
        raise WeightsError(f"{path / 'config.json'} rotates only a part of each head, which Llama here does not")
    scaling: dict[str, Any] = {"type": _ROPE_TYPES[kind]}
    if kind == "default":
        return {"rope_theta": theta, "rope_scaling": scaling}
    if kind in ("dynamic", "yarn"):
        given.setdefault("original_max_position_embeddings", config["max_position_embeddings"])
    readable = RopeScaling.parameters_of(_ROPE_TYPES[kind])
    scaling |= {
        _ROPE_NAMES[key]: value for key, value in given.items() if value is not None and _ROPE_NAMES[key] in readable
    }
    return {"rope_theta": theta, "rope_scaling": scaling}


def tensors(path: Path, config: LlamaConfig) -> Loaders:
    """One loader a tensor. Tied heads and rotary buffers, which some files repeat, are left out: both follow from the rest."""
    loaders = _all(path)
    derived = {name for name in loaders if name.endswith("rotary_emb.inv_freq")}
    if config.tie_embeddings:
        derived.add("lm_head.weight")
    return {name: load for name, load in loaders.items() if name not in derived}


def _all(path: Path) -> Loaders:
    for index in INDEXES:
        if (path / index).is_file():
            return _sharded(path, index)
    for name in WHOLE:
        if (path / name).is_file():
            return _open(contained(path, name), name)
    raise WeightsError(f"{path} has none of {', '.join((*WHOLE, *INDEXES))}; give a folder with weights")


def _open(path: Path, name: str) -> Loaders:
    return safetensors_loaders(path) if name.endswith(".safetensors") else pickled_loaders(path)


def _sharded(path: Path, index: str) -> Loaders:
    where = read_json(path / index).get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(file, str) for file in where.values()):
        raise WeightsError(f"{path / index} has no weight_map of names to files; fetch it again")
    files = {name: _open(contained(path, name), name) for name in sorted(set(where.values()))}
    if missing := sorted(name for name, file in where.items() if name not in files[file]):
        raise WeightsError(f"{path} lacks tensors that its index lists: {', '.join(missing)}; fetch the files again")
    return {name: files[file][name] for name, file in where.items()}


# ------------------------------------------------------------------------------------------------------------- writing


def save_huggingface(config: LlamaConfig, named: Iterator[tuple[str, Tensor]], folder: Path) -> None:
    """Write a folder that ``transformers.AutoModelForCausalLM.from_pretrained`` opens; shard by shard, in their dtype.

    Raises ``WeightsError`` when the folder already has files: nothing is overwritten.
    """
    from safetensors.torch import save_file

    if folder.exists() and any(folder.iterdir()):
        raise WeightsError(f"{folder} is not empty; choose another folder, nothing is overwritten")
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[dict[str, Tensor]] = [{}]
    sizes, files, dtype = [0], 0, "float32"
    where: dict[str, int] = {}
    for name, tensor in named:
        size = tensor.numel() * tensor.element_size()
        if shards[-1] and sizes[-1] + size > SHARD_BYTES:
            save_file(shards[-1], str(folder / f"part-{files}.safetensors"), metadata={"format": "pt"})
            shards[-1], files = {}, files + 1
            sizes.append(0)
        shards[-1][name] = tensor.detach().cpu().contiguous().clone()
        where[name], dtype = files, str(tensor.dtype).removeprefix("torch.")
        sizes[-1] += size
    save_file(shards[-1], str(folder / f"part-{files}.safetensors"), metadata={"format": "pt"})
    _name_shards(folder, where, files + 1, sum(sizes))
    (folder / "config.json").write_text(json.dumps(their_config(config, dtype), indent=2) + "\n", encoding="utf-8")


def _name_shards(folder: Path, where: Mapping[str, int], count: int, size: int) -> None:
    """Give the parts their usual names, which say how many there are."""
    names = [f"model-{part + 1:05d}-of-{count:05d}.safetensors" for part in range(count)] if count > 1 else [WHOLE[0]]
    for part, name in enumerate(names):
        (folder / f"part-{part}.safetensors").rename(folder / name)
    if count > 1:
        index = {"metadata": {"total_size": size}, "weight_map": {name: names[part] for name, part in where.items()}}
        (folder / INDEXES[0]).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def their_config(config: LlamaConfig, dtype: str = "float32") -> dict[str, Any]:
    """``config.json`` as transformers reads it, old releases and new ones."""
    scaling = config.rope_scaling.chosen()
    ours = {ours: theirs for theirs, ours in _ROPE_NAMES.items()}
    kind = {mine: theirs for theirs, mine in _ROPE_TYPES.items()}[scaling.pop("type")]
    rope = {"rope_type": kind, **{ours[key]: value for key, value in scaling.items()}}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **{theirs: getattr(config, mine) for theirs, mine in _NAMES.items()},
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.head_width,
        "hidden_act": "silu",
        "rope_theta": config.rope_theta,
        "rope_scaling": None if kind == "default" else rope,
        "rope_parameters": {"rope_theta": config.rope_theta, **rope},
        "torch_dtype": dtype,
    }


HUGGINGFACE = WeightsFormat(name="huggingface", matches=matches, values=values, tensors=tensors, write=save_huggingface)
