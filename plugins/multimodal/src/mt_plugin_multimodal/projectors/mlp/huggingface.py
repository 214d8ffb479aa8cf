"""The projector of a LLaVA folder, read and written. Torch is not imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core import WeightsError, WeightsFormat
from mt_core.weights import CONFIG, Loaders, is_whole, open_folder, read_json, refuse_values

from ...llava import ARCHITECTURE, PROJECTOR

if TYPE_CHECKING:
    from torch import Tensor

    from . import MlpConfig

DEPTH = 2
ACTIVATION = "gelu"
BIAS = "multimodal_projector_bias"


def values(path: Path) -> dict[str, Any]:
    """Return the shape. Raises ``WeightsError`` for another activation."""
    file = (path.parent if path.is_file() else path) / CONFIG
    said = read_json(file)
    refuse_values(said, file, {"projector_hidden_act": (ACTIVATION, None)})
    return {"depth": DEPTH, "bias": bool(said.get(BIAS, True))}


def tensors(path: Path, config: MlpConfig) -> Loaders:
    """Return one loader a tensor, under our names, which are those of the file without what stands in front."""
    found = {name.removeprefix("model."): load for name, load in open_folder(path).items()}
    return {name.removeprefix(PROJECTOR): load for name, load in found.items() if name.startswith(PROJECTOR)}


def exported(config: MlpConfig) -> dict[str, Any]:
    """Return the keys of ``config.json``. Raises ``WeightsError`` for another depth than LLaVA's."""
    if config.depth != DEPTH:
        raise WeightsError(
            f"the projector mlp has depth={config.depth}, and a LLaVA folder one of {DEPTH}; keep the run's checkpoint"
        )
    return {"architectures": [ARCHITECTURE], "projector_hidden_act": ACTIVATION, BIAS: config.bias}


def written(config: MlpConfig, loaders: Mapping[str, Callable[[], Tensor]]) -> Loaders:
    """Return the tensors under the names of a folder."""
    return {f"{PROJECTOR}{name}": load for name, load in loaders.items()}


LLAVA = WeightsFormat(
    name="llava",
    matches=lambda path: is_whole(path, ARCHITECTURE),
    values=values,
    tensors=tensors,
    exported=exported,
    written=written,
)
