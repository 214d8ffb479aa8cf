"""Folders of LongSafari's HyenaDNA, the ``-hf`` ones and those of the original code. Torch is imported when a tensor is loaded."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core import WeightsError, WeightsFormat
from mt_core.weights import Loaders
from mt_plugin_bio.folders import (
    config_file,
    is_published,
    read_folder,
    renamed_tensors,
    require_numbers,
    require_values,
)

from .config import HyenaDNAConfig

if TYPE_CHECKING:
    from torch import Tensor

FIXED: Mapping[str, tuple[Any, ...]] = {
    "hyena_order": (2,),
    "filter_order": (64,),
    "emb_dim": (5,),
    "short_filter_order": (3,),
    "activation_freq": (10,),
    "w": (10,),
    "num_inner_mlps": (2,),
    "modulate": (True,),
    "vocab_size": (12, 16),
    "layer_norm_epsilon": (1e-5,),
    "hyena_filter_bias": (True,),
    "use_bias": (True,),
}
"""Keys that change the maths; those of the original code stand in ``layer``."""
_PREFIX = re.compile(r"^(?:(?:hyena|model)\.)?backbone\.")
_HEADS = re.compile(r"(^|\.)(lm_head|score|decoder|head)\.")
_FREQUENCIES = re.compile(r"\.implicit_filter\.[35]\.freq$")
_POSITIONS = re.compile(r"\.(pos_emb\.[zt]|modulation\.deltas)$")


def _matches(config: Mapping[str, Any]) -> bool:
    return config.get("model_type") == "hyenadna" or ("d_model" in config and "l_max" in _layer(config))


def _layer(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a file of the original code says of the operator."""
    layer = config.get("layer")
    return layer if isinstance(layer, Mapping) else {}


def _values(path: Path) -> Mapping[str, Any]:
    config, file = read_folder(path), config_file(path)
    flat = {**config, **_layer(config)}
    longest = "l_max" if flat.get("l_max") else "max_seq_len"
    found = require_numbers(flat, {"d_model": "dim", "n_layer": "n_layers", longest: "l_max"}, file)
    require_values(flat, {**FIXED, "d_inner": (4 * found["dim"],)}, file)
    return found


def _rename(name: str) -> str | None:
    """Return the name in this module; ``None`` for a head."""
    if _HEADS.search(name):
        return None
    return _PREFIX.sub("", name).replace(".mixer.layer.", ".mixer.").replace(".mlp.layer.", ".mlp.")


def _tensors(path: Path, config: HyenaDNAConfig) -> Loaders:
    """Return one loader for each tensor that is built.

    Repeated frequencies, and what follows from l_max, are compared with what is used, and left out.
    """
    loaders = renamed_tensors(path, _rename)
    kept: Loaders = {}
    for name, load in loaders.items():
        block = re.match(r"layers\.(\d+)\.", name)
        if (block and int(block[1]) >= config.blocks) or (name.startswith("ln_f.") and not config.has_all_blocks):
            continue
        if _FREQUENCIES.search(name):
            first = re.sub(r"\.[35]\.freq$", ".1.freq", name)
            _compare(path, name, load, loaders.get(first, load))
        elif _POSITIONS.search(name):
            _compare(path, name, load, lambda name=name: _follows(name, config))  # type: ignore[misc]
        else:
            kept[name] = load
    return kept


def _follows(name: str, config: HyenaDNAConfig) -> Tensor:
    """Return the tensor that follows from the shape, and that the files of one shape all have."""
    import torch

    from .encoder import decays, positions

    z_LE, t_L1 = positions(config.shape.l_max, config.shape.l_max, torch.device("cpu"))
    return {"z": z_LE, "t": t_L1, "s": decays(config.shape.dim, z_LE.device)}[name[-1]]


def _compare(path: Path, name: str, load: Callable[[], Tensor], wanted: Callable[[], Tensor]) -> None:
    """Raise ``WeightsError`` where a tensor of the file is not what is used in its place."""
    import torch

    found, used = load().double().flatten(), wanted().double().flatten()
    if found.shape != used.shape or not torch.allclose(found, used, rtol=1e-3, atol=1e-3):
        raise WeightsError(
            f"{path} has a trained {name}, which this encoder computes (or has once); it is another model, choose a published one"
        )


HYENADNA = WeightsFormat(
    name="LongSafari's HyenaDNA",
    matches=lambda path: is_published(path, _matches),
    values=_values,
    tensors=_tensors,
)
