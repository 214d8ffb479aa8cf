"""Arguments of the calls of ``api``, checked where they come in: parameter, got and allowed in one message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import Any

from mt_core.errors import UsageError, show_value

DTYPES = ("auto", "fp32", "bf16", "fp16")
"""Precisions of the weights of a model that is not trained; ``auto`` leaves it to the run or the folder, and the device."""


def refuse(call: str, parameter: str, value: object, allowed: str) -> UsageError:
    """The error of a wrong argument, to be raised."""
    return UsageError(f"{call}(): {parameter} is {allowed}; got {show_value(value)}")


def dtype(call: str, value: object) -> str:
    """The precision of a model's weights."""
    if value not in DTYPES:
        raise refuse(call, "dtype", value, f"{', '.join(DTYPES[:-1])} or {DTYPES[-1]}")
    return str(value)


def component(call: str, parameter: str, value: object) -> str | dict[str, Any]:
    """The name of a component, or a mapping of its name and options."""
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        return dict(value)
    if isinstance(value, str) and value:
        return value
    raise refuse(call, parameter, value, "a name, or a mapping of 'name' and options")


def flag(call: str, parameter: str, value: object) -> bool:
    """``True`` or ``False``, and not what Python takes for one of them."""
    if not isinstance(value, bool):
        raise refuse(call, parameter, value, "True or False")
    return value


def check_whole_number(call: str, parameter: str, value: object, least: int, most: int | None = None) -> int:
    """A whole number from ``least`` on, up to ``most`` where that is given."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least or (most is not None and value > most):
        allowed = f"from {least} on" if most is None else f"from {least} to {most:,}"
        raise refuse(call, parameter, value, f"a whole number {allowed}")
    return value


def text(call: str, parameter: str, value: object, allowed: str = "a text") -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value:
        raise refuse(call, parameter, value, allowed)
    return value


def path(call: str, parameter: str, value: object, allowed: str = "a path (a text, or a pathlib.Path)") -> str:
    """A path, as text. The empty one would be the folder that the program was started in."""
    given = fspath(value) if isinstance(value, str | PathLike) else None
    if not isinstance(given, str) or not given or "\0" in given:
        raise refuse(call, parameter, value, allowed)
    return given


def texts(call: str, parameter: str, value: object) -> tuple[str, ...]:
    """A list of texts. A text alone is refused, where Python would take it for the list of its letters."""
    if (
        not isinstance(value, Sequence)
        or isinstance(value, str | bytes)
        or not all(isinstance(item, str) for item in value)
    ):
        raise refuse(call, parameter, value, "a list of texts, as in ['yes', 'no']")
    return tuple(value)


def require_mapping(call: str, parameter: str, value: object, allowed: str) -> Mapping[Any, Any]:
    """A mapping."""
    if not isinstance(value, Mapping):
        raise refuse(call, parameter, value, allowed)
    return value
