"""Checks of a manifest's fields. One that a run wrote is right; others are damaged, edited, or of another program."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from mt_core.protocols import StepRecord

LARGEST = 2**63 - 1
"""Largest count: numpy and torch have integers up to it."""
_SHOWN = 80

Check = Callable[[Any], bool]


def shorten(value: Any) -> str:
    """A value for a message."""
    text = (
        repr(value)
        if not isinstance(value, int) or abs(value) <= LARGEST
        else f"an integer of {value.bit_length()} bits"
    )
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def is_count(value: Any) -> bool:
    """Return whether it is a whole number from 0 on."""
    return type(value) is int and 0 <= value <= LARGEST


def _is_number(value: Any) -> bool:
    """Return whether it is a finite number that a float can hold."""
    return (type(value) is int and abs(value) <= LARGEST) or (type(value) is float and math.isfinite(value))


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _is_mapping_of(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _has(known: Mapping[str, Check], *, required: int = 0, others: bool = False) -> Check:
    """A check of a mapping with these keys, of which the first ones must be there; ``others`` may stand beside them."""

    def check(value: Any) -> bool:
        if not isinstance(value, dict) or not value.keys() >= set(list(known)[:required]):
            return False
        if not others and value.keys() - known.keys():
            return False
        return all(test(value[key]) for key, test in known.items() if key in value)

    return check


_RECORD = {each.name: _or_none(_is_number) for each in fields(StepRecord)}
_RECORD |= {"step": is_count, "tokens": is_count, "counts_tokens": _is_flag}
_RECORD |= dict.fromkeys(("metrics", "evaluation"), _is_mapping_of(_or_none(_is_number)))
_PLACE = {**dict.fromkeys(("epoch", "row", "block", "read"), is_count), "state": _or_none(_is_mapping)}
_LENGTH = {"steps": _or_none(is_count), "epochs": _or_none(lambda value: _is_number(value) and value > 0)}

FIELDS: Mapping[str, tuple[Check, str]] = {
    "tokens": (is_count, "a count"),
    "position": (_has(_PLACE, required=2), "a place in the rows (epoch, row, block, read: counts; state: a mapping)"),
    "pending": (_or_none(_has(_RECORD, required=8)), "the record of a step, or null"),
    "skipped": (is_count, "a count"),
    "ended_by_callback": (_is_flag, "true or false"),
    "seconds": (lambda value: _is_number(value) and value >= 0, "a time (seconds)"),
    "evaluation": (_is_mapping_of(_is_number), "figures by name"),
    "total_steps": (lambda value: is_count(value) and value > 0, "a count from 1 on"),
    "layout": (
        _has({"global_batch_size": lambda value: is_count(value) and value > 0}, required=1, others=True),
        "a layout with a global_batch_size from 1 on",
    ),
    "model": (_is_mapping, "a mapping"),
    "plugins": (_is_mapping_of(_is_text), "versions by name"),
    "config": (_has({"train": _has(_LENGTH, others=True)}, others=True), "a config whose train has steps or epochs"),
    "data": (
        _or_none(_has({"sha256": _is_text, "rows": is_count, "tokenizer": _is_text}, required=2, others=True)),
        "what tells rows from others (sha256, rows, tokenizer), or null",
    ),
    "began": (_has({"directory": _is_text, "run": _is_text}, required=2), "two places (directory, run)"),
    "base": (_or_none(_is_mapping_of(_is_text)), "SHA-256 by file, or null"),
    "callbacks": (_is_mapping, "states by callback"),
    "adapter": (_is_mapping, "a mapping"),
    "experts": (_or_none(lambda value: value in ("fused", "listed")), "fused, listed or null"),
}
"""Field that a run saves → whether a value may be one, and what it should be. What callbacks and adapters keep is their own."""

REQUIRED = ("tokens", "position", "total_steps", "layout", "config", "callbacks")
"""Fields without which no run can go on."""


def odd_fields(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yield the faults of a manifest's fields."""
    for key, (check, wanted) in FIELDS.items():
        if key in manifest and not check(manifest[key]):
            yield f"{key} is {shorten(manifest[key])} instead of {wanted}"
