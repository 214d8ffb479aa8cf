"""Keys of objects in a row that are there because other rows have them: tables give every object the keys of all, and null for a value.

A call of one tool would be written with the arguments of all others (``{"city": "Rome", "zip": null}``), and learned so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def without_absent_keys(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row whose objects have no key with the value null, however deep they stand; its own fields stay."""
    return {name: _clean(value) if isinstance(value, dict | list) else value for name, value in row.items()}


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _clean(each) for key, each in value.items() if each is not None}
    if isinstance(value, list) and isinstance(next((each for each in value if each is not None), None), dict | list):
        return [_clean(each) for each in value]  # of one type, as all lists of a table are
    return value
