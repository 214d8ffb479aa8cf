"""Configs as YAML or JSON files, read closed: duplicate keys and other than plain data are errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from mt_core.config.strict import strict_json
from mt_core.errors import UsageError


class _ClosedLoader(yaml.SafeLoader):
    """YAML's safe subset, where a key that is written twice is an error."""


def _mapping(loader: _ClosedLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    for key in keys:
        if keys.count(key) > 1:
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is written twice", node.start_mark)
    return loader.construct_mapping(node, deep=True)


_ClosedLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_config(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML or ``.json`` file, with ``-`` in keys read as ``_``. Raises ``UsageError`` with file and line."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read the config {path}: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the config {path} is not UTF-8 (byte {error.start}); save it as UTF-8") from error
    content = _json(text, path) if path.suffix.lower() == ".json" else _yaml(text, path)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError(f"{path}: a config is a mapping of keys, got a {type(content).__name__}; see examples/")
    return {str(key).replace("-", "_"): _underscored(value) for key, value in content.items()}


def _yaml(text: str, path: Path) -> Any:
    try:
        return yaml.load(text, Loader=_ClosedLoader)  # noqa: S506 - a subclass of the safe loader
    except RecursionError as error:
        raise UsageError(f"{path}: not valid YAML: too deeply nested") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise UsageError(f"{path}{where}: not valid YAML: {getattr(error, 'problem', error)}") from error


def _json(text: str, path: Path) -> Any:
    try:
        return strict_json(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}") from error
    except RecursionError as error:
        raise UsageError(f"{path}: not valid JSON: too deeply nested") from error
    except ValueError as error:
        raise UsageError(f"{path}: {error}; keep one, and write numbers as JSON does") from error


def _underscored(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key).replace("-", "_"): item for key, item in value.items()}
    return value


def write_yaml(content: dict[str, Any]) -> str:
    """YAML text in the order given; tuples as lists."""
    return yaml.safe_dump(_plain(content), sort_keys=False, allow_unicode=True, width=120)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
