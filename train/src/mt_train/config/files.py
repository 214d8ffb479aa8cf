"""Configs as YAML or JSON files, read closed: duplicate keys and other than plain data are errors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from os import fspath
from pathlib import Path
from typing import Any

import yaml

from mt_core.errors import UsageError, cut
from mt_core.files.strict_json import parse_json
from mt_core.plugins.lock_file import LOCK_FILE, RUN_FILE
from mt_train.config.keys import underscore_keys
from mt_train.config.plain import MOST_BITS, MOST_LEVELS, check_plain
from mt_train.config.plain import MOST_VALUES as MOST_RUN_VALUES
from mt_train.config.reading import read_small_text

MOST_BYTES = 10**6
MOST_VALUES = 10_000
"""Most bytes and values of a config file. YAML is read in Python, ten thousand values a second: a file of rows would take minutes."""
MOST_RUN_BYTES = 20 * 10**6
"""Most bytes of the ``run.yaml`` of a run, with as many values as a run may have: new tokens that one text of a command line names."""

_NUMBERS = {"bool": "true or false", "int": "a whole number", "float": "a number", "null": "null"}
_PLAIN = ("str", "seq", "map")
_TAG = "tag:yaml.org,2002:"
_MERGE = f"{_TAG}merge"


class PlainLoader(yaml.SafeLoader):
    """YAML's safe subset, of plain data alone: no dates, no bytes, no sets, and a key that is written twice is an error."""

    def __init__(self, text: str, most: int = MOST_VALUES) -> None:
        self._count = self._level = 0
        self._most = most
        super().__init__(text)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Count values and levels while they are read: a file of rows by mistake is not read to its end."""
        self._count += 1
        self._level += 1
        if self._count > self._most:
            _refuse(f"more than {self._most:,} values; put rows and long lists into files", self._place())
        if self._level > MOST_LEVELS:
            _refuse(f"more than {MOST_LEVELS} levels deep; write it flatter", self._place())
        node = super().compose_node(parent, index)
        self._level -= 1
        return node

    def _place(self) -> yaml.Mark:
        place: yaml.Mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        return place

    def seems(self, word: str) -> str:
        """The tag that YAML gives a word without quotes."""
        return str(self.resolve(yaml.ScalarNode, word, (True, False)))  # type: ignore[no-untyped-call]


def _refuse(problem: str, mark: yaml.Mark) -> None:
    raise yaml.constructor.ConstructorError(None, None, problem, mark)


def _scalar(kind: str) -> Callable[[PlainLoader, yaml.ScalarNode], Any]:
    """A constructor whose refusal has a place in the file: Python's own has none."""
    read = yaml.SafeLoader.yaml_constructors[_TAG + kind]

    def construct(loader: PlainLoader, node: yaml.ScalarNode) -> Any:
        digits = sum(map(str.isdigit, node.value))
        if digits > 10 * MOST_BITS:
            _refuse(
                f"a number of {digits:,} digits; write a smaller one, or quotes around it where it is text",
                node.start_mark,
            )
        try:
            return read(loader, node)
        except (ValueError, KeyError, OverflowError):
            if node.value and node.style is None and loader.seems(node.value) == node.tag:
                return node.value  # 0b_ looks like a number to YAML, and is none: it is the text that it is
            return _refuse(f"{node.value[:60]!r} is not {_NUMBERS[kind]}", node.start_mark)

    return construct


def _mapping(loader: PlainLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    if merging := [key for key, _ in node.value if key.tag == _MERGE]:
        _refuse("merge keys (<<) are not read; write the keys themselves", merging[0].start_mark)
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if isinstance(key, list | dict):
            _refuse("a list or a mapping is no key", key_node.start_mark)
        if key in seen:
            _refuse(f"key {key!r} is written twice", key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


PlainLoader.yaml_constructors = {
    None: yaml.SafeLoader.yaml_constructors[None],  # refuses any other tag by its name
    **{_TAG + kind: yaml.SafeLoader.yaml_constructors[_TAG + kind] for kind in _PLAIN},
    **{_TAG + kind: _scalar(kind) for kind in _NUMBERS},
    f"{_TAG}map": _mapping,
}
_UNREAD = (f"{_TAG}timestamp", f"{_TAG}value")
PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag not in _UNREAD]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
"""A date is the text that it is, as on the command line and in JSON; so is a single ``=``."""


def read_config(path: str | Path) -> dict[str, Any]:
    """Return the mapping in a YAML or ``.json`` file, with ``-`` in keys read as ``_``. Raises ``UsageError`` with file and line."""
    if not fspath(path):
        raise UsageError("the path of a config is empty; name a YAML or JSON file")
    path = Path(path)
    text = _text(path)
    content = _json(text, path) if path.suffix.lower() == ".json" else _yaml(text, path)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError(f"{path}: a config is a mapping of keys, got a {type(content).__name__}; see docs/start.md")
    check_plain(content, str(path), _most_values(path))
    return {name: _underscore_keys(value, path) for name, value in underscore_keys(content, str(path)).items()}


def section_of(path: Path, name: str) -> dict[str, Any]:
    """A section of a config file; an empty one where it is not there, or is no mapping."""
    section = read_config(path).get(name)
    return section if isinstance(section, dict) else {}


def _is_of_run(path: Path) -> bool:
    """Return whether a run wrote the file, as what lies beside it says; people call theirs run.yaml, too."""
    return path.name == RUN_FILE and (path.parent / LOCK_FILE).is_file()


def _most_values(path: Path) -> int:
    return MOST_RUN_VALUES if _is_of_run(path) else MOST_VALUES


def _text(path: Path) -> str:
    most = MOST_RUN_BYTES if _is_of_run(path) else MOST_BYTES
    try:
        return read_small_text(path, "utf-8-sig", most=most)
    except OSError as error:
        raise UsageError(f"cannot read the config {cut(str(path), 300)}: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the config {path} is not UTF-8 (byte {error.start}); save it as UTF-8") from error
    except ValueError as error:  # a NUL character, which no path has
        raise UsageError(f"cannot read the config {str(path)!r}: {error}; check the path") from error


def _yaml(text: str, path: Path) -> Any:
    try:
        return PlainLoader(text, _most_values(path)).get_single_data()
    except RecursionError as error:
        raise UsageError(f"{path}: not valid YAML: too deeply nested; write it flatter") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise UsageError(f"{path}{where}: not valid YAML: {yaml_problem(error)}") from error


def yaml_problem(error: yaml.YAMLError) -> str:
    """Describe the fault in one line, with what to do where the library's own words do not say it."""
    problem = re.sub(r"\s+", " ", str(getattr(error, "problem", None) or error).strip())
    return problem + next((f"; {fix}" for words, fix in _FIXES.items() if words in problem), "")


_FIXES = {
    "cannot start any token": "indent with spaces, and put quotes around text that begins with @, ` or a tab",
    "mapping values are not allowed here": "put quotes around text with a colon and a space in it",
    "could not determine a constructor": "leave the tag out; a config has texts, numbers, lists and mappings",
    "special characters are not allowed": "this is no text file, or has a control character in it",
    "found undefined alias": "put quotes around text that begins with a star",
    "expected a single document": "keep one document, without a line ---",
}


def _json(text: str, path: Path) -> Any:
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}") from error
    except RecursionError as error:
        raise UsageError(f"{path}: not valid JSON: too deeply nested; write it flatter") from error
    except ValueError as error:
        raise UsageError(f"{path}: {error}; write each key once, and numbers as JSON does") from error


def _underscore_keys(value: Any, path: Path) -> Any:
    return underscore_keys(value, str(path)) if isinstance(value, dict) else value


def write_yaml(content: dict[str, Any]) -> str:
    """Return YAML text, with keys in the order given and tuples as lists."""
    return yaml.dump(_plain_value(content), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Dumper(yaml.SafeDumper):
    """YAML's own, but for text with U+0085, which it would write as a line end that is read as a space."""


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(f"{_TAG}str", text, style='"' if "\x85" in text else None)


_Dumper.add_representer(str, _represent_text)


def _plain_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain_value(item) for key, item in value.items()}
    return [_plain_value(item) for item in value] if isinstance(value, list | tuple) else value


# libyaml's take a tenth of the time, where it is. Files are neither read nor written by them: other messages, and escaped emoji.
_QuickLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_QuickDumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def as_read(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config as it comes back from a file that it is written into."""
    text = yaml.dump(_plain_value(dict(raw)), Dumper=_QuickDumper, sort_keys=False)
    content: dict[str, Any] = yaml.load(text, Loader=_QuickLoader)  # noqa: S506 - safe, too
    return content
