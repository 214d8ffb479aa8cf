"""The files that a run's weights are read from: the base, adapters that are merged into it, and the one that the run trains on from."""

from __future__ import annotations

from collections.abc import Mapping
from os.path import expanduser
from pathlib import Path

from mt_core.errors import WeightsError
from mt_train.adapters.folder import AdapterFolder
from mt_train.assemble.parts import Parts
from mt_train.checkpoint.files import sha256
from mt_train.config.run import ModelRef
from mt_train.plugins.saved_adapter import open_adapter

_WEIGHTS = (".safetensors", ".bin", ".pth", ".pt", ".index.json")
_MERGED = "adapters/"
"""Beginning of the names that ``base_files`` gives the files of merged adapters, before the number of the adapter."""
_OVERLAY = "overlay/"
"""Beginning of the name of an overlay's file, where a file of the weights has the same name."""
_ENCODERS = "encoders/"
"""Beginning of those of encoders' own folders, before the name of the encoder. No adapter stands on them."""


def first_adapter(parts: Parts) -> AdapterFolder | None:
    """Return the adapter whose values the run's begins with: ``adapter.weights``, or a ``model.overlay`` that is one.

    Raises ``WeightsError`` for both, and for a folder that holds none.
    """
    given, overlay = parts.config.adapter.source.weights, parts.config.model.source.overlay
    over = adapter_folder(overlay)
    if given is not None and over is not None:
        raise WeightsError(
            f"adapter.weights is {given}, and model.overlay is the adapter {overlay}: a run's adapter begins with one; keep one of them,"
            " and merge the other one with --model.adapters"
        )
    return over if given is None else open_adapter(given)


def adapter_folder(overlay: str | None) -> AdapterFolder | None:
    """Return the adapter of ``model.overlay``, where that is a folder that peft or ``mt-export`` wrote."""
    return None if overlay is None else AdapterFolder.at(Path(expanduser(overlay)))


def base_files(parts: Parts) -> dict[str, str]:
    """SHA-256 of the files that ``model.weights``, ``model.overlay``, ``model.adapters`` and encoders name: what frozen weights were read
    from.

    The adapter that the run trains is not one of them, since its values are in every checkpoint.
    """
    merged = {
        f"{_MERGED}{number}/{path.name}": sha256(path)
        for number, each in enumerate(parts.merged, 1)
        for path in each.folder.files
    }
    encoders = {
        f"{_ENCODERS}{name}/{path.name}": sha256(path)
        for name, paths in _encoder_paths(parts).items()
        for path in paths
    }
    weights: dict[str, str] = {}
    for path in weight_paths(parts):  # an overlay's file may be called as one of the weights
        weights[f"{_OVERLAY}{path.name}" if path.name in weights else path.name] = sha256(path)
    return weights | merged | encoders


def describe_adapters(parts: Parts, *, resumed: bool) -> list[dict[str, object]]:
    """Return the saved adapters that a run is made of, with the hashes of their files: those merged, then what it trains on from.

    A run that is ``resumed`` has the values of the latter in its checkpoint, and needs its folder no more.
    """
    first = None if resumed else first_adapter(parts)
    found = [("merged", each.folder) for each in parts.merged] + ([] if first is None else [("trained on", first)])
    return [
        {"use": use, "folder": str(folder.path), "sha256": {path.name: sha256(path) for path in folder.files}}
        for use, folder in found
    ]


def first_paths(parts: Parts) -> list[Path]:
    """Return every file that the weights of step 0 follow from."""
    first = first_adapter(parts)
    merged = [path for each in parts.merged for path in each.folder.files]
    encoders = [path for paths in _encoder_paths(parts).values() for path in paths]
    return [*weight_paths(parts), *merged, *encoders, *(() if first is None else first.files)]


def _encoder_paths(parts: Parts) -> dict[str, list[Path]]:
    """Return the files of encoders that have folders of their own, by the names of the encoders."""
    apart = (each for each in parts.encoders if each.path is not None and each.path != parts.weights_path)
    return {each.name: _files(each.path) for each in apart if each.path is not None}


def weight_paths(parts: Parts) -> list[Path]:
    """Return the files of ``model.weights``, and of ``model.overlay`` where that is no adapter."""
    is_adapter = adapter_folder(parts.config.model.source.overlay) is not None
    overlay = None if is_adapter else without_gone(parts.config.model).source.overlay
    found = [parts.weights_path] if parts.weights_path is not None else []
    return [path for place in (*found, overlay) if place is not None for path in _files(Path(expanduser(place)))]


def hashes_under(known: Mapping[str, str], number: int) -> tuple[set[str], set[str]]:
    """Return of ``base_files`` the hashes of the weights, and those of the adapters up to ``number``, from 1."""
    weights = {value for name, value in known.items() if not name.startswith((_MERGED, _ENCODERS))}
    below = tuple(f"{_MERGED}{each}/" for each in range(1, number + 1))
    return weights, {value for name, value in known.items() if name.startswith(below)}


def without_gone(model: ModelRef) -> ModelRef:
    """Return the model without an overlay that is gone: an adapter's is in the checkpoint, and another one's hash is missed."""
    overlay = model.source.overlay
    if overlay is None or Path(expanduser(overlay)).exists():
        return model
    return model.model_copy(update={"source": model.source.model_copy(update={"overlay": None})})


def _files(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if path.name.endswith(_WEIGHTS)) if place.is_dir() else [place]


def check_base_of(folder: AdapterFolder, parts: Parts) -> None:
    """Raise ``WeightsError`` for an adapter of other weights. Names of files do not matter; peft writes no hashes."""
    before = folder.written.get("base")
    if before and _under_adapters(before) != _under_adapters(base_files(parts)):
        raise WeightsError(
            f"{folder.path} was trained on other weights than {parts.weights_path or 'those drawn from the seed'}: the"
            f" files have other hashes. {_base_advice(folder, parts)}"
        )


def _under_adapters(known: Mapping[str, str]) -> set[str]:
    return {value for name, value in known.items() if not name.startswith(_ENCODERS)}


def _base_advice(folder: AdapterFolder, parts: Parts) -> str:
    if parts.merged:
        return (
            "Adapters that are merged under it count, in number and content: give those of its run as --model.adapters"
        )
    if any(name.startswith(_MERGED) for name in folder.written["base"]):
        return "Its run has merged adapters under it: give the same ones as --model.adapters"
    named = folder.config.get("base_model_name_or_path")
    return f"Give --model.weights {named}, which it names" if named else "Give the --model.weights of its run"
