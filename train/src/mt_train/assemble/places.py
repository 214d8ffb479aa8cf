"""The places that a run's config names, for commands that read the run where it, or they, are somewhere else now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from os.path import expanduser
from pathlib import Path
from typing import Any

from mt_core.errors import WeightsError
from mt_train.assemble.portable_names import stands_for_rows
from mt_train.config.run import SECTIONS
from mt_train.plugins.hub import is_name, is_there, locate
from mt_train.plugins.whole_models import MODEL
from mt_train.tracking.logs import first_notice

PLACES = (
    ("model", "weights"),
    ("model", "overlay"),
    ("model", "adapters"),
    ("adapter", "weights"),
    ("tokenizer", "path"),
)
"""Keys with a path, or paths, to what a run was made of."""
OF_ENCODERS = ("weights", "tokenizer")
"""Keys of an encoder with a path."""
ROWS = (("data", "eval"), ("data", "media_root"))
"""Keys with a path to rows, beside those of a dataset and of what it is made of that end in ``path``."""
ELSEWHERE = frozenset({*SECTIONS, "model", "adapter", "tokenizer", "dataset", "encoders", "callbacks", "trackers"})
"""Keys that have their own paths above, or have none, or name what only a run that trains has."""


def with_places(
    raw: Mapping[str, Any], folder: Path, *, is_whole: bool, directory: Path | None = None
) -> dict[str, Any]:
    """Return a run's config with its paths as they are found from here.

    A relative one is that in the ``directory`` in which the run began. Else, one of weights or rows that is not there is looked for
    beside the run's folder and above; one of other components, as of a reward, may name code and is taken as it is. Weights that are
    gone are left out where the checkpoint ``is_whole``: it has all of them, and a notice says what else was with them.
    """
    found, find = dict(raw), partial(_find, folder=folder, directory=directory)
    for section, key in (*PLACES, *ROWS):
        given = found.get(section)
        if not isinstance(given, Mapping):
            continue
        if isinstance(path := given.get(key), str):
            found[section] = {**given, key: find(path)}
        elif isinstance(path, list | tuple):
            found[section] = {**given, key: [find(each) if isinstance(each, str) else each for each in path]}
    if "dataset" in found:
        found["dataset"] = _with_paths(found["dataset"], find)
    if directory is not None:
        begun = partial(_in_directory, directory=directory)
        found |= {key: _with_paths(each, begun) for key, each in found.items() if key not in ELSEWHERE}
    if encoders := _encoders(found):
        found["encoders"] = [_encoder_beside(each, find) for each in encoders]
    model = found.get("model")
    weights = model.get("weights") if isinstance(model, Mapping) else None
    if is_whole and isinstance(model, Mapping) and isinstance(weights, str) and _is_gone(weights):
        found["model"] = _without_weights(model)
        # the checkpoint has those that were in the model's folder, and the config their shape
        if encoders := _encoders(found):
            found["encoders"] = [_without_models_weights(each) for each in encoders]
        first_notice(
            f"notice: {weights}, with which the run began, is gone; its checkpoint has all weights, and end tokens are those of the"
            " tokenizer alone"
        )
    return found


def _encoders(raw: Mapping[str, Any]) -> list[Any]:
    """Return the encoders of a config as a run's file lists them."""
    given = raw.get("encoders")
    return list(given) if isinstance(given, list | tuple) else []


def _with_paths(given: Any, find: Callable[[str], str], key: str = "") -> Any:
    """Return the options of a component, and of those that it is made of, with their paths (``…path``) as they are found from here."""
    if isinstance(given, Mapping):
        return {name: _with_paths(each, find, name) for name, each in given.items()}
    if isinstance(given, list | tuple):
        return [_with_paths(each, find, key) for each in given]
    return find(given) if isinstance(given, str) and key.endswith("path") else given


def _encoder_beside(given: Any, find: Callable[[str], str]) -> Any:
    """Return an encoder of a config with its paths as they are found from here; ``model`` is no path."""
    if not isinstance(given, Mapping):
        return given
    paths = {key: given[key] for key in OF_ENCODERS if isinstance(given.get(key), str) and given[key] != MODEL}
    return {**given, **{key: find(path) for key, path in paths.items()}}


def _without_models_weights(given: Any) -> Any:
    """Return an encoder of a config without weights that it has from the model's folder."""
    if not isinstance(given, Mapping) or given.get("weights") != MODEL:
        return given
    return {key: value for key, value in given.items() if key != "weights"}


def _without_weights(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model of a config without the weights that it began with, and the adapters that were merged into them.

    A whole checkpoint needs neither, and the config has the shape.
    """
    return {key: value for key, value in model.items() if key not in ("weights", "adapters")}


def _is_gone(weights: str) -> bool:
    """Return whether weights are neither at their path nor, where that may be a name of the Hub, to be had from there."""
    if is_there(Path(expanduser(weights))):
        return False
    if not is_name(weights):
        return True
    try:
        locate(weights)
    except WeightsError:
        return True
    return False


def _find(path: str, folder: Path, directory: Path | None) -> str:
    """Return where a relative path leads from the directory in which the run began; from the run's folder or one above it, if it leads
    nowhere from there and from here; else the path."""
    given = Path(expanduser(path))
    if given.is_absolute() or directory == Path.cwd():
        return path
    began = path if directory is None else _in_directory(path, directory)
    if began != path or stands_for_rows(path):
        return began
    return next((str(each / given) for each in folder.resolve().parents if is_there(each / given)), path)


def _in_directory(path: str, directory: Path) -> str:
    """Return where a relative path leads from the directory in which the run began; the path, if it leads nowhere from there."""
    given = Path(expanduser(path))
    if not path or given.is_absolute() or directory == Path.cwd() or not stands_for_rows(str(directory / given)):
        return path
    if stands_for_rows(path):
        _say_which(path, directory)
    return str(directory / given)


@cache  # once for all checkpoints that a command reads
def _say_which(path: str, directory: Path) -> None:
    first_notice(f"notice: {path} is the one in {directory}, where the run began, and not the one here")
