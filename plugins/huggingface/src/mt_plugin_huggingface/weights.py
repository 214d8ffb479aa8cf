"""Folders as transformers writes them: ``config.json`` and safetensors (or ``.bin``), whole or in shards.

The files are read by mt_core's own reader, which stays in the folder and executes nothing; transformers says what the names of old
files mean. ``values`` reads JSON only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core import WeightsError, WeightsFormat
from mt_core.weights import CONFIG, Loaders, check_folder, is_folder, open_folder, read_json, without_tied_head

from .config import HuggingFaceConfig, fault_of
from .environment import forbid_fetched_kernels

if TYPE_CHECKING:
    from torch import nn


def values(path: Path) -> Mapping[str, Any]:
    """The config of a folder. Raises ``WeightsError`` for a type that is not trained here, with the reason, and for damaged files."""
    file = (path.parent if path.is_file() else path) / CONFIG
    content = read_json(file)
    if fault := fault_of(content):
        raise WeightsError(f"{file}: {fault}")
    check_folder(path)
    return {"config": _with_named_infinity(content)}


def _with_named_infinity(value: Any) -> Any:
    """The same with numbers that JSON does not have as transformers 5 writes them; before, it wrote a bare ``Infinity``."""
    if isinstance(value, dict):
        return {key: _with_named_infinity(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_named_infinity(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"__float__": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    return value


def tensors(path: Path, config: HuggingFaceConfig) -> Loaders:
    """One loader a parameter, under the names of the model. Raises ``WeightsError`` for two tensors of one parameter."""
    import torch

    forbid_fetched_kernels()
    from .build import build_language_model

    with torch.device("meta"):
        model = build_language_model(config)
    found = open_folder(path)
    named = _model_names(model, found)
    own = dict(model.named_parameters(remove_duplicate=False))
    ignored = [re.compile(each) for each in getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()]
    ignored += [re.compile(re.escape(name) + "$") for name, _ in model.named_buffers()]
    loaders: Loaders = {}
    for theirs, ours in named.items():
        if ours not in own and any(each.search(ours) or each.search(theirs) for each in ignored):
            continue  # tables of positions and masks that old versions saved
        if ours in loaders:
            raise WeightsError(f"{path} has two tensors for {ours}, one of them {theirs}; fetch the files again")
        loaders[ours] = found[theirs]
    embedding, head = f"{config.kind.embed}.weight", f"{config.kind.head}.weight"
    if own[embedding] is own[head]:
        return without_tied_head(loaders, path, embedding=embedding, head=head)
    return loaders


def _model_names(model: nn.Module, names: Iterable[str]) -> dict[str, str]:
    """Names in files → those of the model: renamings of the type, of old files, and the prefix that a bare decoder lacks."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming, rename_source_key

    known = model.state_dict()
    transforms = get_model_conversion_mapping(model, add_legacy=True)
    renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
    prefix = model.base_model_prefix
    return {name: rename_source_key(name, renamings, [], prefix, known)[0] for name in names}


def exported(config: HuggingFaceConfig) -> Mapping[str, Any]:
    """What ``config.json`` said, with the numbers of this config."""
    return {key: value for key, value in config.content().items() if key not in ("dtype", "transformers_version")}


HUGGINGFACE = WeightsFormat(name="huggingface", matches=is_folder, values=values, tensors=tensors, exported=exported)
