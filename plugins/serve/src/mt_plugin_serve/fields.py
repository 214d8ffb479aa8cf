"""Fields of a request: each is read once by what it has to be, and one that nobody reads is an error that names it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from mt_core import did_you_mean

from .errors import ApiError

T = TypeVar("T")
D = TypeVar("D")
Read = Callable[[Any], T]
"""Returns the value as what it has to be, or raises ``ValueError`` whose message goes on after the field's name."""

_SHOWN = 60


class Fields:
    """The fields of one object. ``null`` is a field that is not there, as in OpenAI's API."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self._raw = {name: value for name, value in raw.items() if value is not None}
        self._known: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._raw

    def take(self, name: str, read: Read[T], default: D) -> T | D:
        """Return the field, or ``default`` where it is not there. Raises ``ApiError`` that names it."""
        self._known.add(name)
        if name not in self._raw:
            return default
        try:
            return read(self._raw[name])
        except ValueError as error:
            raise ApiError(f"{name} {error}", field=name) from error

    def require(self, name: str, read: Read[T]) -> T:
        """Return a field that has to be there."""
        if name not in self._raw:
            raise ApiError(f"{name} is missing, and every request has to have it", field=name)
        value = self.take(name, lambda given: (read(given),), None)
        assert value is not None, "it is there"
        return value[0]

    def refuse(self, reasons: Mapping[str, str]) -> None:
        """Refuse fields that OpenAI has and this server has not, with the reason."""
        self._known |= reasons.keys()
        for name in self._raw:
            if name in reasons:
                raise ApiError(f"{name} is not supported: {reasons[name]}", field=name, code="unsupported_parameter")

    def close(self) -> None:
        """Refuse what nobody has read."""
        for name in self._raw:
            if name not in self._known:
                hint = did_you_mean(name, sorted(self._known))
                raise ApiError(f"there is no field {show(name)}. {hint}".strip(), field=name, code="unknown_parameter")


def read_object(body: bytes) -> dict[str, Any]:
    """Return the object that a body is. Raises ``ApiError`` for anything else, halves of characters included."""
    try:
        found = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_unique)
        json.dumps(found, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ApiError(
            "the body has half of a character (a lone surrogate, \\ud800 to \\udfff); take it out"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ApiError(f"the body is no JSON: {shorten(str(error))}") from error
    if not isinstance(found, dict):
        raise ApiError(f"the body has to be a JSON object, got {show(found)}")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{show(next(name for name in names if names.count(name) > 1))} is there twice")
    return found


def whole(least: int, most: int) -> Read[int]:
    """A whole number between two."""

    def read(value: Any) -> int:
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"has to be a whole number from {least:,} to {most:,}, got {show(value)}")
        return int(value)

    return read


def number(least: float, most: float) -> Read[float]:
    """A number between two."""

    def read(value: Any) -> float:
        fine = type(value) in (int, float) and (type(value) is int or math.isfinite(value))
        if not fine or not least <= value <= most:
            raise ValueError(f"has to be a number from {least:g} to {most:g}, got {show(value)}")
        return float(value)

    return read


def flag(value: Any) -> bool:
    """``true`` or ``false``."""
    if not isinstance(value, bool):
        raise ValueError(f"has to be true or false, got {show(value)}")
    return value


def text(value: Any) -> str:
    """A text."""
    if not isinstance(value, str):
        raise ValueError(f"has to be a text, got {show(value)}")
    return value


def texts(most: int) -> Read[tuple[str, ...]]:
    """One text, or a list of some; none is empty."""

    def read(value: Any) -> tuple[str, ...]:
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not all(isinstance(each, str) and each for each in listed):
            raise ValueError(f"has to be a text that is not empty, or a list of such, got {show(value)}")
        if len(listed) > most:
            raise ValueError(f"has {len(listed):,} texts, and takes at most {most:,}")
        return tuple(listed)

    return read


def mapping(value: Any) -> Mapping[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        raise ValueError(f"has to be an object, got {show(value)}")
    return value


def only(*allowed: Any, why: str) -> Read[None]:
    """A field of OpenAI's that is taken where it says what happens anyway."""

    def read(value: Any) -> None:
        if not any(type(value) is type(each) and value == each for each in allowed):
            shown = " or ".join(json.dumps(each) for each in allowed)
            raise ValueError(f"can only be {shown} here, got {show(value)}: {why}")

    return read


def show(value: Any) -> str:
    """Return a value as JSON has it, cut short, for a message."""
    return shorten(json.dumps(value, ensure_ascii=False, default=str))


def shorten(said: str) -> str:
    """Return a text, cut short where it is long."""
    return said if len(said) <= _SHOWN else f"{said[: _SHOWN - 1]}…"
