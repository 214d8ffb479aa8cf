"""Base of trackers of services: their package, the id of a run across resumes, and the names of figures."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from mt_core import MtError, StepRecord
from mt_core.files import make_folder, replace_file

FOLDER = "trackers"
"""Folder of a run with the id that each service gave it."""
_WORD = re.compile(r"[\w-]+")


def package(name: str, extra: str) -> Any:
    """The service's own package. Raises ``MtError`` with the line that installs it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MtError(
            f"tracker {extra} needs the package {name}, which cannot be imported ({error}): pip install 'mt-plugin-trackers[{extra}]'"
        ) from error


def kept_id(output: Path | None, tracker: str) -> str | None:
    """The id of this run at the service, where it has one."""
    path = None if output is None else output / FOLDER / tracker
    return path.read_text("utf-8").strip() if path is not None and path.is_file() else None


def keep_id(output: Path | None, tracker: str, run_id: str) -> None:
    """Remember it for a resumed run."""
    if output is not None:
        with replace_file(make_folder(output / FOLDER) / tracker) as file:
            file.write(f"{run_id}\n".encode())


def id_file(tracker: str) -> str:
    """Return where that is in a run's folder."""
    return f"{FOLDER}/{tracker}"


def figures(record: StepRecord) -> dict[str, float]:
    """The figures of a step under their names in ``metrics.jsonl``; what is no number is left out."""
    return {name: float(value) for name, value in record.as_dict().items() if name != "step" and math.isfinite(value)}


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and their values. A mapping with other keys than words is a value itself: no service takes a pattern as a name."""
    for key, value in config.items():
        if isinstance(value, Mapping) and all(_WORD.fullmatch(str(each)) for each in value):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
