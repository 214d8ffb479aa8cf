"""Other values of options, one at a time, and a comparison of what a component does with them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import torch
from pydantic import ValidationError
from torch import Tensor

from mt_core.config.base import MtConfig


def varied_options(config: MtConfig) -> Iterator[tuple[str, list[Any]]]:
    """Yield each number, switch and choice of a config with the other values that it may have beside the given ones."""
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        candidates = [each for each in _candidates(value, field.annotation) if _takes(config, name, each)]
        if candidates:
            yield name, candidates


def _candidates(value: Any, annotation: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [2 * value or 1, value + 1, max(value // 2, 1), 1, 0]
    if isinstance(value, float):
        return [2 * value or 0.5, value / 2, 0.1, 0.0]
    return [each for each in _choices(annotation) if each != value]


def _choices(annotation: Any) -> Sequence[Any]:
    """Return the members of a ``Literal``, also inside ``Annotated`` or a union."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    if get_origin(annotation) in (Annotated, Union, UnionType):
        return [each for part in get_args(annotation) for each in _choices(part)]
    return ()


def _takes(config: MtConfig, name: str, value: Any) -> bool:
    if value == getattr(config, name):
        return False
    given = {key: getattr(config, key) for key in config.model_fields_set}
    try:
        type(config)(**{**given, name: value})
    except ValidationError:
        return False
    return True


def options_without_effect(
    config: MtConfig,
    options: Mapping[str, Any],
    effect: Callable[[Mapping[str, Any]], Any],
    errors: tuple[type[Exception], ...],
    untried: Collection[str],
) -> list[tuple[str, Any]]:
    """Return the options that change nothing in ``effect(options)``, each with a value that was tried.

    An option that changes nothing by itself is tried beside other values of switches, choices and numbers that are 0, which may switch it
    on. Values that are refused with ``errors`` are read, so they count as a change.
    """
    varied = {name: values for name, values in varied_options(config) if name not in untried}

    def outcome(**others: Any) -> Any:
        try:
            return effect({**options, **others})
        except errors as error:
            return str(error)

    def acts(name: str, **others: Any) -> bool:
        first = outcome(**others)
        return any(not is_same(outcome(**others, **{name: value}), first) for value in varied[name])

    idle = [name for name in varied if not acts(name)]
    switches = {name for name in varied if not getattr(config, name) or isinstance(getattr(config, name), bool | str)}
    switched = [
        name
        for name in idle
        if any(acts(name, **{other: value}) for other in switches - {name} for value in varied[other])
    ]
    return [(name, varied[name][0]) for name in idle if name not in switched]


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values are equal to the bit, tensors inside of them too."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(is_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(is_same(*pair) for pair in zip(one, other, strict=True))
    return bool(repr(one) == repr(other))
