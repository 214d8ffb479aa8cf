"""Pydantic's errors as faults that a person can act on: what, got, allowed, fix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, get_args

from pydantic import ValidationError

from mt_core.config.base import MtConfig, nested_config
from mt_core.errors import Fault, did_you_mean, show_value

HINTED = 50
"""Faults that are compared with what would be right, which takes a while: a file of something else has thousands."""
_ALTERNATIVES = ("function-before[", "literal[", "tuple[")
"""How pydantic names the alternatives of a field in the place of an error."""


def faults_of(
    error: ValidationError, config: type[MtConfig], prefix: str, extra_keys: Iterable[str] = ()
) -> list[Fault]:
    """Return one fault per mistake; ``prefix`` is the slot or section, ``extra_keys`` are keys that the core adds to it."""
    items: list[dict[str, Any]] = [dict(item) for item in error.errors(include_url=False)]
    hinted = [_fault(item, prefix, _sibling_keys(config, item["loc"], extra_keys)) for item in items[:HINTED]]
    return hinted + [
        Fault(key=".".join(map(str, (prefix, *item["loc"]))), problem=f"{item['msg']}.") for item in items[HINTED:]
    ]


def _sibling_keys(config: type[MtConfig], path: Sequence[int | str], extra_keys: Iterable[str]) -> list[str]:
    """The keys beside the last one of ``path``; none where a mapping has the user's own."""
    if len(path) < 2:
        return sorted({*config.model_fields, *extra_keys})
    field = config.model_fields.get(str(path[0]))
    if field is None:  # a place in a list, or which type of a union was tried
        return _sibling_keys(config, path[1:], ())
    annotation = field.annotation
    nested = filter(None, map(nested_config, (annotation, *get_args(annotation))))
    return next((_sibling_keys(below, path[1:], ()) for below in nested), [])


def _fault(item: dict[str, Any], prefix: str, known: Sequence[str]) -> Fault:
    path = [str(part) for part in item["loc"] if not str(part).startswith(_ALTERNATIVES)]
    top = [part.replace("_", "-") for part in (prefix, *path[:1])]
    key = ".".join(filter(None, [*top, *path[1:]]))  # what is below may be names of the user's own
    kind, got = item["type"], item.get("input")
    if kind == "extra_forbidden":
        hint = did_you_mean(path[-1], known)
        allowed = _describe_allowed(prefix, known) if known or len(path) == 1 else ""
        return Fault(key=key, problem="no such key.", fix=f"{hint.replace('_', '-')}{allowed}")
    if kind == "missing":
        return Fault(key=key, problem="is required.", fix=f"Set --{key}.")
    if kind in ("value_error", "assertion_error"):
        message = str(item["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
        return Fault(key=key, problem=f"{message}.")
    message = str(item["msg"]).removeprefix("Input ").replace("a valid tuple", "a list such as [a, b]")
    message = message.replace("a valid dictionary", "a mapping such as {key: value}")
    return Fault(key=key, problem=f"{message}, got {show_value(got)}.")


def _describe_allowed(prefix: str, known: Sequence[str]) -> str:
    if not known:
        return f"It takes no options: leave this one out, or choose another {prefix.partition('.')[0]}."
    return f"Known keys: {', '.join(name.replace('_', '-') for name in known)}."
