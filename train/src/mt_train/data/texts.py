"""Texts in a row, however deep in it they stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def texts_in(value: Any) -> list[str]:
    """Every text in a value as JSON has it, names of fields too."""
    if isinstance(value, str):
        return [value]
    found: list[str] = []
    if isinstance(value, dict):
        value = [*value, *value.values()]
    for each in value if isinstance(value, list | tuple) else ():
        if type(each) is str:
            found.append(each)
        elif each is not None:
            found += texts_in(each)
    return found


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """The value with every text changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {with_texts(key, change): with_texts(each, change) for key, each in value.items()}
    return [with_texts(each, change) for each in value] if isinstance(value, list | tuple) else value
