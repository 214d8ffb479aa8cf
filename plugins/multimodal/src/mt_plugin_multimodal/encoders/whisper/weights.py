"""Whisper's folders as transformers writes them: the encoder's half of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core import WeightsError, WeightsFormat
from mt_core.weights import CONFIG, Loaders, check_folder, is_folder, open_folder, read_json, refuse_values

from ...image_config import processor_of
from ..tensors import require_safetensors, tensors_below

if TYPE_CHECKING:
    from . import WhisperConfig

_KEYS = {
    "num_mel_bins": "n_mels",
    "d_model": "dim",
    "encoder_layers": "n_layers",
    "encoder_attention_heads": "n_heads",
    "encoder_ffn_dim": "ffn_dim",
    "max_source_positions": "n_features",
}
_FIXED: Mapping[str, tuple[Any, ...]] = {"activation_function": ("gelu", None), "quantization_config": (None,)}
_SOUND: Mapping[str, tuple[Any, ...]] = {
    "sampling_rate": (16_000, None),
    "hop_length": (160, None),
    "n_fft": (400, None),
}
_PREFIXES = ("model.encoder.", "encoder.", "")
_POSITIONS = "embed_positions.weight"
_ROUNDING = 1e-3
"""Largest difference of the positions in a file from sinusoids: a file in fp16 has half of it."""


def matches(path: Path) -> bool:
    """Return whether a folder is Whisper's."""
    return path.is_dir() and is_folder(path) and read_json(path / CONFIG).get("model_type") == "whisper"


def values(path: Path) -> Mapping[str, Any]:
    """Return the sizes that ``config.json`` says. Raises ``WeightsError`` for another activation, rate or window."""
    require_safetensors(path)
    config = read_json(path / CONFIG)
    refuse_values(config, path / CONFIG, _FIXED)
    if (sound := processor_of(path, "feature_extractor")) is not None:
        file, said = sound
        refuse_values(said, file, _SOUND)
    if missing := [key for key in _KEYS if type(config.get(key)) is not int]:
        raise WeightsError(
            f"{path / CONFIG} has no whole number for {', '.join(missing)}; take the config.json that was published with the weights"
        )
    check_folder(path)
    return {ours: config[theirs] for theirs, ours in _KEYS.items()}


def tensors(path: Path, config: WhisperConfig) -> Loaders:
    """Return one loader a parameter of what is built. Raises ``WeightsError`` for one that is missing, and for positions of its own."""
    from . import build

    found = open_folder(path)
    loaders = tensors_below(found, path, _PREFIXES, partial(build, config))
    prefix = next(each for each in _PREFIXES if f"{each}conv1.weight" in found)
    _require_sinusoids(found, f"{prefix}{_POSITIONS}", path)
    return loaders


def _require_sinusoids(found: Loaders, name: str, path: Path) -> None:
    """They are computed here, in fp32: no training of Whisper changes them."""
    if name not in found:
        return
    from .module import sinusoids

    table_TD = found[name]().float()
    if not (table_TD - sinusoids(*table_TD.shape)).abs().max() <= _ROUNDING:
        raise WeightsError(
            f"{path}: {name} holds positions that were trained, and Whisper's are fixed sinusoids; take other weights"
        )


WHISPER = WeightsFormat(name="whisper", matches=matches, values=values, tensors=tensors)
