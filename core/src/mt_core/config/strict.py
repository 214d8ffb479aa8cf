"""JSON read closed: no key twice, no number that JSON has no word for."""

from __future__ import annotations

import json
from typing import Any


def strict_json(text: str) -> Any:
    """The value. Raises ``ValueError`` (a ``JSONDecodeError`` with the place where the text is no JSON at all)."""
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_refused)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key!r} is written twice")
        found[key] = value
    return found


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
