"""Names of the parameters that a run trains, written shortly: those of many layers as one pattern."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from torch import nn

from mt_train.config.sections import TrainConfig


def describe_trained(model: nn.Module, train: TrainConfig) -> dict[str, Any]:
    """Return the ``names`` of what is trained, and whether keys of the run have ``chosen`` among them."""
    names = (name for name, parameter in model.named_parameters() if parameter.requires_grad)
    return {"names": collapse_names(names), "chosen": bool(train.enable or train.disable)}


def collapse_names(names: Iterable[str]) -> list[str]:
    """Write names that differ in numbers as one: ``layers.{0..15}.attn.q_proj.weight``. Each name is in exactly one of the results."""
    numbers: dict[tuple[str | None, ...], list[tuple[int, ...]]] = {}
    for name in names:
        parts = name.split(".")
        form = tuple(None if part.isdecimal() else part for part in parts)
        numbers.setdefault(form, []).append(tuple(int(part) for part in parts if part.isdecimal()))
    return [_fill(form, written) for form, found in numbers.items() for written in _write_numbers(found)]


def _fill(form: Sequence[str | None], written: Sequence[str]) -> str:
    rest = iter(written)
    return ".".join(next(rest) if part is None else part for part in form)


def _write_numbers(found: Sequence[tuple[int, ...]]) -> list[tuple[str, ...]]:
    """Write tuples of numbers as few products of ranges: first numbers that have the same rests stand together."""
    if not found[0]:
        return [()]
    rests: dict[int, list[tuple[int, ...]]] = {}
    for first, *rest in found:
        rests.setdefault(first, []).append(tuple(rest))
    alike: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for first, each in rests.items():
        alike.setdefault(tuple(sorted(each)), []).append(first)
    return [(_write_ranges(firsts), *others) for rest, firsts in alike.items() for others in _write_numbers(rest)]


def _write_ranges(numbers: Sequence[int]) -> str:
    """``3``, ``{0..15}``, ``{0,2..5}``."""
    if len(numbers) == 1:
        return str(numbers[0])
    groups = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    spans = [[number for _, number in group] for _, group in groups]
    return "{" + ",".join(str(span[0]) if len(span) == 1 else f"{span[0]}..{span[-1]}" for span in spans) + "}"
