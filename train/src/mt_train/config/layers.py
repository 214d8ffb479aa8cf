"""Configs on top of each other: a recipe, files with what they include, and the command line. The later one wins, key by key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mt_core.errors import ConfigError, Fault, UsageError, show_value
from mt_core.kinds import Kinds
from mt_train.config.commandline import merge
from mt_train.config.files import read_config
from mt_train.config.keys import dotted_keys
from mt_train.config.names import expand

RECIPE = "recipe "
"""Begin of the name of a layer that comes from a recipe."""
MOST_FILES = 50
"""Most files that one config may include, each of which may include others."""


@dataclass(frozen=True)
class Layer:
    """The keys of one source, under the ``name`` that ``--print-config`` gives it. ``file`` is where they stand, if in a file."""

    name: str
    raw: Mapping[str, Any]
    file: Path | None = None


@dataclass(frozen=True)
class Layers:
    """Configs on top of each other, the lowest first: what they say together, and which said what."""

    layers: tuple[Layer, ...] = ()
    raw: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, layers: Iterable[Layer], kinds: Kinds) -> Layers:
        """Lay them over each other, the last on top."""
        kept, raw, origins = tuple(layers), dict[str, Any](), dict[str, str]()
        for layer in kept:
            raw = merge(raw, layer.raw, kinds)
            origins |= dict.fromkeys(dotted_keys(merge({}, layer.raw, kinds)), layer.name)
        present = dotted_keys(raw)  # options of a component that gave way to another one are gone
        return cls(kept, raw, {key: name for key, name in origins.items() if key in present})

    def locate(self, error: ConfigError) -> ConfigError:
        """Return the error with the file and line of each fault that stands in a file."""
        faults = [self._locate(fault) for fault in error.faults]
        return ConfigError(faults, nearest=error.nearest)

    def _locate(self, fault: Fault) -> Fault:
        place = self._place(fault.key.replace("-", "_").split("."))
        return Fault(key=fault.key, problem=fault.problem, fix=f"{fault.fix} ({place})".strip()) if place else fault

    def _place(self, path: list[str]) -> str:
        """Name the source that says a key, with its line; nothing where that is the command line, or none."""
        for layer in reversed(self.layers):
            depth = _depth(layer.raw, path)
            if depth < min(2, len(path)):
                continue  # the section alone is nothing that a fault of a key in it could be laid to
            line = _line(layer.file, path[:depth]) if layer.file else 0
            return f"{layer.name}, line {line}" if line else layer.name if layer.file else ""
        return ""


def read_layers(path: Path, name: str = "") -> Iterator[Layer]:
    """Yield the layers of a config file: those that it includes, in order, and its own keys on top of them.

    ``include: [FILE, …]`` at its top names them, relative to the file's own folder. Raises ``UsageError`` for a file that includes
    itself, or too many.
    """
    yield from _read_layers(path, name or str(path), (), [0])


def _read_layers(path: Path, name: str, above: tuple[Path, ...], count: list[int]) -> Iterator[Layer]:
    count[0] += 1
    if count[0] > MOST_FILES:
        raise UsageError(f"{above[0]} includes more than {MOST_FILES} files; write them into fewer")
    raw = read_config(path)
    if path.resolve() in above:
        raise UsageError(f"{path} includes itself, over {above[-1]}; take one of the two out of 'include'")
    for file in _included(raw.pop("include", None), path):
        yield from _read_layers(file, str(file), (*above, path.resolve()), count)
    yield Layer(name, raw, path)


def _included(given: Any, path: Path) -> list[Path]:
    names = [given] if isinstance(given, str) else given if given is not None else []
    if not isinstance(names, list) or not all(isinstance(each, str) and each for each in names):
        raise UsageError(
            f"{path}: 'include' must be a list of files, got {show_value(given)}; write include: [base.yaml]"
        )
    return [path.parent / expand(each) for each in names]


def _depth(raw: Mapping[str, Any], path: list[str]) -> int:
    """Return how many parts of a dotted key a config has."""
    node: Any = raw
    for depth, part in enumerate(path):
        if not isinstance(node, Mapping):
            return depth
        found = next((key for key in node if str(key).replace("-", "_") == part), None)
        if found is None:
            return depth
        node = node[found]
    return len(path)


def _line(file: Path, path: list[str]) -> int:
    """Return the line of a key in a YAML or JSON file, from 1; 0 where it cannot be told."""
    try:
        node = yaml.compose(file.read_text(encoding="utf-8-sig"), Loader=yaml.SafeLoader)
    except yaml.YAMLError:  # JSON that is no YAML, as with a key of more than 1,024 letters
        return 0
    line = 0
    for part in path:
        if not isinstance(node, yaml.MappingNode):
            break
        pairs = [(key, value) for key, value in node.value if str(key.value).replace("-", "_") == part]
        if not pairs:
            break
        line, node = pairs[0][0].start_mark.line + 1, pairs[0][1]
    return line
