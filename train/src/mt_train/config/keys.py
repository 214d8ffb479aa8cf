"""Keys of a config, as people write them (``max-len`` and ``max_len`` are one), and dotted (``data.max_len``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mt_core.errors import UsageError
from mt_core.kinds import CORE_KINDS
from mt_train.config.run import SECTIONS


def underscore_keys(content: Mapping[Any, Any], source: str) -> dict[str, Any]:
    """The mapping with ``-`` in its keys read as ``_``. Raises ``UsageError`` where two keys are one then."""
    named: dict[str, Any] = {}
    for key, value in content.items():
        name = str(key).replace("-", "_")
        if name in named:
            raise UsageError(
                f"{source}: key {name.replace('_', '-')!r} is written twice, once with - and once with _; keep one"
            )
        named[name] = value
    return named


def dotted_keys(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of slots and sections by dotted key; what else there is stays under its own."""
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if isinstance(value, dict) and (key in CORE_KINDS.slots or key in SECTIONS):
            values |= {f"{key}.{name}": item for name, item in value.items()}
        else:
            values[key] = value
    return values
