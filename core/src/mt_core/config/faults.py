"""Pydantic's errors as faults that a person can act on: what, got, allowed, fix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import ValidationError

from mt_core.config.base import MtConfig
from mt_core.errors import Fault, did_you_mean

_ALTERNATIVES = ("function-before[", "literal[", "tuple[")
"""How pydantic names the alternatives of a field in the place of an error."""


def faults_of(
    error: ValidationError, config: type[MtConfig], prefix: str, extra_keys: Iterable[str] = ()
) -> list[Fault]:
    """One fault per mistake; ``prefix`` is the slot or section, ``extra_keys`` are keys that the core adds to it."""
    known = sorted({*config.model_fields, *extra_keys})
    return [_fault(dict(item), prefix, known) for item in error.errors(include_url=False)]


def _fault(item: dict[str, Any], prefix: str, known: Sequence[str]) -> Fault:
    path = [str(part) for part in item["loc"] if not str(part).startswith(_ALTERNATIVES)]
    top, below = (
        [part.replace("_", "-") for part in (prefix, *path[:1])],
        path[1:],
    )  # below may be names of the user's own
    key = ".".join([*top, *below])
    kind, got = item["type"], item.get("input")
    if kind == "extra_forbidden":
        hint = did_you_mean(path[-1], known) if len(path) == 1 else ""
        allowed = _allowed(prefix, known) if len(path) == 1 else ""
        return Fault(key=key, problem="no such key.", fix=f"{hint.replace('_', '-')}{allowed}")
    if kind == "missing":
        return Fault(key=key, problem="is required.", fix=f"Set --{key}.")
    if kind in ("value_error", "assertion_error"):
        message = str(item["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
        return Fault(key=key, problem=f"{message}.")
    message = str(item["msg"]).removeprefix("Input ").replace("a valid tuple", "a list such as [a, b]")
    return Fault(key=key, problem=f"{message}, got {got!r}.")


def _allowed(prefix: str, known: Sequence[str]) -> str:
    if not known:
        return f"It takes no options: leave this one out, or choose another {prefix.partition('.')[0]}."
    return f"Known keys: {', '.join(name.replace('_', '-') for name in known)}."
