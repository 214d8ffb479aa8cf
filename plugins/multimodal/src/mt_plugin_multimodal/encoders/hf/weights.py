"""Folders as transformers writes them, for its encoders. Tensors are read by mt_core; transformers says what names of older files mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core import WeightsError, WeightsFormat
from mt_core.weights import CONFIG, Loaders, check_folder, is_folder, open_folder, read_json, refuse_values

from ...image_config import processor_of, read_processor
from ..tensors import require_safetensors
from .types import TYPES, Kind, encoder_config, fault_of

if TYPE_CHECKING:
    from torch import Tensor

    from .config import HfConfig

RATE = 16_000
_INSIDE = ("vision_model.", "model.vision_model.")
"""Where a model of images and texts has its vision half."""


def hf_format(kind: Kind) -> WeightsFormat:
    """Return the format of folders with encoders of a kind."""
    return WeightsFormat(name="huggingface", matches=is_folder, values=lambda path: values(path, kind), tensors=tensors)


def values(path: Path, kind: Kind) -> Mapping[str, Any]:
    """Return ``config.json``, and what the image processor's file says. Raises ``WeightsError`` for a type that is not known here."""
    folder = path.parent if path.is_file() else path
    content = read_json(folder / CONFIG)
    if fault := fault_of(content, kind):
        raise WeightsError(f"{folder / CONFIG}: {fault}")
    require_safetensors(path)
    check_folder(path)
    if kind == "image":
        known = TYPES[str(encoder_config(content)["model_type"])]
        return {"config": content, **read_processor(folder, crops=known.crops)}
    return {"config": content, **(_read_sounds(folder) if kind == "audio" else {})}


def _read_sounds(folder: Path) -> Mapping[str, Any]:
    """Return the options that the file of a folder's feature extractor says."""
    found = processor_of(folder, "feature_extractor")
    if found is None:
        return {}
    file, said = found
    refuse_values(said, file, {"sampling_rate": (RATE, None), "feature_size": (1, None)})
    return {"normalize": bool(said.get("do_normalize", True))}


def tensors(path: Path, config: HfConfig) -> Loaders:
    """Return one loader a parameter of what is built. Raises ``WeightsError`` for one that is missing, twice there, or made of several.

    One in a file that is several here, as the gate and the way up of DINOv2's largest size, is cut along its first dimension.
    """
    import torch

    from .build import build_theirs

    with torch.device("meta"):
        model = build_theirs(config)
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import Chunk, WeightConverter, WeightRenaming, rename_source_key

    mapping = get_model_conversion_mapping(model, add_legacy=True)
    renamings = [each for each in mapping if isinstance(each, WeightRenaming)]
    chunks = [each for each in mapping if isinstance(each, WeightConverter) and isinstance(each.operations[0], Chunk)]
    wanted, state = {name for name, _ in model.named_parameters()}, model.state_dict()
    out: Loaders = {}
    for theirs, load in open_folder(path).items():
        for inner in (theirs, *(theirs.removeprefix(each) for each in _INSIDE if theirs.startswith(each))):
            name, pattern = rename_source_key(inner, renamings, chunks, model.base_model_prefix, state)
            if name in wanted:
                targets = next((each.target_patterns for each in chunks if pattern in each.source_patterns), [name])
                names = [f"model.{name.replace(targets[0], each)}" for each in targets]
                if out.keys() & names:
                    raise WeightsError(
                        f"{path} has two tensors for {name}, {theirs} one of them; fetch the files again"
                    )
                out |= dict(zip(names, _pieces(load, len(names)), strict=True))
                break
    if missing := sorted(name for name in wanted if f"model.{name}" not in out):
        raise WeightsError(
            f"{path} lacks {len(missing)} of the encoder's {len(wanted)} tensors, {missing[0]} among them; take the folder of an encoder"
        )
    return out


def _pieces(load: Callable[[], Tensor], count: int) -> list[Callable[[], Tensor]]:
    """Return loaders of equal pieces of the first dimension."""
    return [load] if count == 1 else [partial(_piece, load, at, count) for at in range(count)]


def _piece(load: Callable[[], Tensor], at: int, count: int) -> Tensor:
    return load().chunk(count)[at].clone()
