"""Folders as transformers writes them: ``config.json`` and safetensors (or ``.bin``), whole or in shards.

The files are read by mt_core's own reader, which stays in the folder and executes nothing; transformers says what the names of old
files mean. ``values`` reads JSON only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core import WeightsError, WeightsFormat, notice
from mt_core.weights import (
    CONFIG,
    Loaders,
    check_folder,
    fused_experts,
    is_folder,
    open_folder,
    read_json,
    without_tied_head,
)

from .config import HuggingFaceConfig, fault_of
from .environment import forbid_fetched_kernels

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


def values(path: Path) -> Mapping[str, Any]:
    """The config of a folder. Raises ``WeightsError`` for a type that is not trained here, with the reason, and for damaged files."""
    file = (path.parent if path.is_file() else path) / CONFIG
    content = read_json(file)
    if fault := fault_of(content):
        raise WeightsError(f"{file}: {fault}")
    check_folder(path)
    return {"config": _with_named_infinity(content)}


def _with_named_infinity(value: Any) -> Any:
    """Return a value with the numbers that JSON does not have as transformers 5 writes them; before, it wrote a bare ``Infinity``."""
    if isinstance(value, dict):
        return {key: _with_named_infinity(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_named_infinity(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"__float__": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    return value


def tensors(path: Path, config: HuggingFaceConfig) -> Loaders:
    """One loader a parameter, under the names of the model. Raises ``WeightsError`` for tensors that are there twice or in part."""
    model = _on_meta(config)
    from .conversion import Conversions

    found = Conversions(model).read(open_folder(path), path)
    saved = model.state_dict()
    ignored = [re.compile(each) for each in getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()]
    ignored += [re.compile(re.escape(name) + "$") for name, _ in model.named_buffers()]
    loaders: Loaders = {
        name: partial(_reshaped, load, (1,)) if name in saved and not saved[name].shape else load
        for name, load in found.items()
        if name in saved or not any(each.search(name) for each in ignored)  # tables that old versions saved
    }
    embedding, head = f"{config.kind.embed}.weight", f"{config.kind.head}.weight"
    row = config.config.get(_PAD)
    if config.kind.padding == "embedding" and row is not None and embedding in loaders:
        loaders = {**loaders, embedding: partial(_without_row, loaders[embedding], row, path)}
    if model.get_parameter(embedding) is model.get_parameter(head):
        return without_tied_head(loaders, path, embedding=embedding, head=head)
    return loaders


def written(config: HuggingFaceConfig, loaders: Mapping[str, Callable[[], Tensor]]) -> Loaders:
    """The tensors of the model as published files have them: experts one by one, under the names of the type."""
    model = _on_meta(config)
    import torch

    from mt_core.nn import expert_layouts

    from .build import build_language_model
    from .conversion import Conversions

    saved = model.state_dict()
    with torch.device("meta"):
        fused = fused_experts(loaders, expert_layouts(build_language_model(config)))
    shaped = {name: load if saved[name].shape else partial(_reshaped, load, ()) for name, load in fused.items()}
    return Conversions(model).written(shaped)


def _without_row(load: Callable[[], Tensor], row: int, path: Path) -> Tensor:
    """Return an embedding with zeros as its row of padding, which transformers sets to zero when it opens such a folder."""
    weight = load()
    if bool(weight[row].any()):
        notice(
            f"notice: the row of token {row} ({_PAD}) in the embedding of {path} is set to zero, as transformers does when it opens a"
            f" folder of this type, though the file has other numbers; leave {_PAD} out of {CONFIG} to keep them"
        )
        weight = weight.clone()
        weight[row] = 0
    return weight


def _reshaped(load: Callable[[], Tensor], shape: tuple[int, ...]) -> Tensor:
    """A single number, which is a vector in the model."""
    return load().reshape(shape)


def _on_meta(config: HuggingFaceConfig) -> PreTrainedModel:
    import torch

    forbid_fetched_kernels()
    from .build import build_plain

    with torch.device("meta"):
        return build_plain(config)


def exported(config: HuggingFaceConfig) -> Mapping[str, Any]:
    """Return the content of ``config.json`` with the numbers of this config."""
    return {key: value for key, value in config.content().items() if key not in ("dtype", "transformers_version")}


def special_ids(config: HuggingFaceConfig, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tokenizer's special ids as the type takes them: none where the config's own must stay, so that ``exported`` says it."""
    kind = config.kind
    own = {name for name in kind.needed_ids if given.get(name) is None} | ({_PAD} if kind.padding else set())
    ids = {name: each for name, each in given.items() if name not in own}
    return {**ids, _PAD: None} if kind.padding == "embedding" else ids  # the row of the file stays what it is


_PAD = "pad_token_id"

HUGGINGFACE = WeightsFormat(
    name="huggingface",
    matches=is_folder,
    values=values,
    tensors=tensors,
    exported=exported,
    written=written,
    special_ids=special_ids,
)
