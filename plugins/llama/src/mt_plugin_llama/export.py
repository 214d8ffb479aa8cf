"""Writing a folder that ``transformers.AutoModelForCausalLM.from_pretrained`` opens."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core import WeightsError

from .config import LlamaConfig
from .names import NAMES, ROPE_NAMES, ROPE_TYPES
from .shapes import HEAD, Shape, parameter_shapes

if TYPE_CHECKING:
    from torch import Tensor

SHARD_BYTES = 4 * 10**9
"""Largest file that is written, and what is held in memory at a time."""


def save_huggingface(config: LlamaConfig, tensors: Iterable[tuple[str, Tensor]], folder: Path) -> None:
    """Write ``config.json`` and safetensors, shard by shard, each tensor in its dtype.

    Raises ``WeightsError`` when the folder has files (nothing is overwritten), or when the tensors are not those of the
    config. The folder appears when it is complete: until then it has ``.partial`` at the end of its name.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise WeightsError(f"{folder} is not empty; choose another folder, nothing is overwritten")
    stage = folder.with_name(f"{folder.name}.partial")
    if stage.exists():
        raise WeightsError(f"{stage} exists, from an export that was cut off; remove it, or choose another folder")
    stage.mkdir(parents=True)
    try:
        dtype = _write_shards(config, tensors, stage)
        _write_json(stage / "config.json", their_config(config, dtype))
        os.replace(stage, folder)
    except BaseException:
        shutil.rmtree(stage)
        raise


def their_config(config: LlamaConfig, dtype: str = "float32") -> dict[str, Any]:
    """``config.json`` as transformers reads it, releases 4 and 5.

    The special ids belong to a tokenizer and are unknown here; left out, transformers would take 1 and 2.
    """
    scaling = config.rope_scaling.chosen()
    ours = {ours: theirs for theirs, ours in ROPE_NAMES.items()}
    kind = {mine: theirs for theirs, mine in ROPE_TYPES.items()}[scaling.pop("type")]
    written = {theirs: getattr(config, mine) for theirs, mine in NAMES.items()}
    if kind == "dynamic":  # has no name for the original length but this one
        written["max_position_embeddings"] = scaling.pop("original_max_seq_len")
    rope = {"rope_type": kind, **{ours[key]: value for key, value in scaling.items()}}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **written,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.head_width,
        "hidden_act": "silu",
        "rope_theta": config.rope_theta,
        "rope_scaling": None if kind == "default" else rope,
        "rope_parameters": {"rope_theta": config.rope_theta, **rope},
        "bos_token_id": None,
        "eos_token_id": None,
        "torch_dtype": dtype,
    }


def _write_shards(config: LlamaConfig, tensors: Iterable[tuple[str, Tensor]], stage: Path) -> str:
    """Returns the dtype of the first tensor, by name."""
    missing = parameter_shapes(config)
    shard: dict[str, Tensor] = {}
    shards: list[list[str]] = []
    size = total = 0
    dtype = ""
    for name, tensor in tensors:
        if config.tie_embeddings and name == HEAD:
            continue  # the embedding, once more
        _check(name, tuple(tensor.shape), missing.pop(name, None))
        dtype = dtype or str(tensor.dtype).removeprefix("torch.")
        added = tensor.numel() * tensor.element_size()
        if shard and size + added > SHARD_BYTES:
            shards.append(_write(shard, stage, len(shards)))
            shard, size = {}, 0
        shard[name] = tensor.detach().to("cpu", copy=True).contiguous()  # a view would drag its whole storage along
        size, total = size + added, total + added
    if missing:
        raise WeightsError(
            f"tensors are missing for the export: {', '.join(missing)}; give all parameters of the model"
        )
    shards.append(_write(shard, stage, len(shards)))
    _name_shards(stage, shards, total)
    return dtype


def _check(name: str, found: Shape, wanted: Shape | None) -> None:
    if wanted is None:
        raise WeightsError(
            f"{name} is no parameter of this Llama, or came twice; give its named_parameters(), adapters merged"
        )
    if found != wanted:
        raise WeightsError(f"{name} has shape {found} and the config says {wanted}; give the config of these tensors")


def _write(shard: Mapping[str, Tensor], stage: Path, number: int) -> list[str]:
    """Write one file; returns the names in it."""
    from safetensors.torch import save_file

    path = stage / f"part-{number}"
    save_file(dict(shard), str(path), metadata={"format": "pt"})
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)  # safetensors writes 0600, which the group that shares a model cannot read
    return list(shard)


def _name_shards(stage: Path, shards: list[list[str]], total: int) -> None:
    """Give the parts their usual names, which say how many there are, and write the index."""
    count = len(shards)
    if count == 1:
        (stage / "part-0").rename(stage / "model.safetensors")
        return
    files = [f"model-{part + 1:05d}-of-{count:05d}.safetensors" for part in range(count)]
    for part, file in enumerate(files):
        (stage / f"part-{part}").rename(stage / file)
    where = {name: file for file, names in zip(files, shards, strict=True) for name in names}
    _write_json(stage / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": where})


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
