"""Keys as people write them: ``max-len`` and ``max_len`` are one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mt_core.errors import UsageError


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
