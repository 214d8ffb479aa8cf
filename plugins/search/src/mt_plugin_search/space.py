"""Space of a search: for each key of a run a range, or values to choose from; one way to write them, in files and on the command line.

log:1e-5..1e-3     fractions between the two, as many per decade
0.0..0.2           fractions, evenly
2..8               whole numbers, since both ends are written as whole numbers
0.0..0.2/0.05      in steps
4,8,16             one of these; in a file also [4, 8, 16]
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from decimal import Decimal
from itertools import product
from typing import Any

import yaml

from mt_core import Fault, first_line
from mt_train.command import CORE_KINDS, merge

Value = str | int | float | bool | None
"""A value that a trial may set a key to."""

HOW = "Write low..high, log:low..high, low..high/step, or values with commas: a,b,c."
_NUMBER = r"[+-]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"(?P<log>log:)?(?P<low>{_NUMBER})\.\.(?P<high>{_NUMBER})(?:/(?P<step>{_NUMBER}))?")
_WHOLE = re.compile(r"[+-]?\d+")
_MOST = 2**53
"""The largest whole number that samplers, which compute with floats, can tell from its neighbours."""


@dataclass(frozen=True, kw_only=True)
class Range:
    """Numbers from ``low`` to ``high``, both included; whole ones where ``whole``."""

    low: float
    high: float
    step: float | None = None
    log: bool = False
    whole: bool = False

    def __str__(self) -> str:
        step = "" if self.step is None else f"/{option_text(self.step)}"
        return f"{'log:' if self.log else ''}{option_text(self.low)}..{option_text(self.high)}{step}"

    def as_raw(self) -> str:
        """Return the range as a file has it."""
        return str(self)

    @property
    def probes(self) -> tuple[Value, ...]:
        """Values that a config has to take if it takes the range: its ends."""
        return (self.low, self.high)

    @property
    def all(self) -> tuple[Value, ...] | None:
        """Every value in turn; ``None`` where there are endlessly many."""
        if self.whole:
            return tuple(range(int(self.low), int(self.high) + 1, int(self.step or 1)))
        if self.step is None:
            return None
        # In decimals, as a person writes them: 3 * 0.1 is 0.30000000000000004, and beyond a range that ends at 0.3.
        low, step = Decimal(repr(self.low)), Decimal(repr(self.step))
        inner = (float(low + number * step) for number in range(1, self.steps))
        return (self.low, *inner, self.high)

    @property
    def steps(self) -> int:
        """Return how many steps lie between the ends."""
        assert self.step is not None, "only a range with steps has a number of them"
        return round((self.high - self.low) / self.step)


@dataclass(frozen=True)
class Choices:
    """One of these."""

    values: tuple[Value, ...]

    def __str__(self) -> str:
        return ",".join(map(option_text, self.values))

    def as_raw(self) -> list[Value]:
        """Return the choices as a file has them."""
        return list(self.values)

    @property
    def probes(self) -> tuple[Value, ...]:
        """Every one of them."""
        return self.values

    @property
    def all(self) -> tuple[Value, ...] | None:
        """Every one of them."""
        return self.values


Dimension = Range | Choices
Space = Mapping[str, Dimension]
"""Dotted key of a run → what is tried there, in the order in which it was written."""


def read_space(raw: Mapping[str, Any]) -> tuple[dict[str, Dimension], list[Fault]]:
    """The space in nested or dotted keys, and everything that is wrong with it."""
    space: dict[str, Dimension] = {}
    faults = []
    for key, given in _leaves(raw):
        try:
            if key in space:
                raise ValueError(f"is given twice, as {space[key]} and {given}. Keep one.")
            space[key] = read_dimension(given)
        except ValueError as error:
            faults.append(Fault(key=option(key), problem=str(error)))
    if not space and not faults:
        fix = "Give keys of the run, as in --search.optimizer.lr log:1e-5..1e-3, or --space FILE."
        faults.append(Fault(key="search", problem="there is nothing to search.", fix=fix))
    return space, faults


def option(key: str) -> str:
    """The key as it is written on the command line, without the dashes."""
    return f"search.{key}".replace("_", "-")


def _leaves(raw: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, given in raw.items():
        key = f"{prefix}{name}".replace("-", "_")
        if isinstance(given, Mapping):
            yield from _leaves(given, f"{key}.")
        else:
            yield (f"{key}.name" if key in CORE_KINDS.slots else key), given


def read_dimension(given: Any) -> Dimension:
    """A range or choices, from text or from a list of values. Raises ``ValueError`` with what is wrong."""
    if isinstance(given, list | tuple):
        return _choices(given)
    if not isinstance(given, str):
        raise ValueError(f"is one value, {option_text(given)}, so there is nothing to search. {HOW}")
    text = given.strip()
    if match := _RANGE.fullmatch(text):
        return _range(**match.groupdict())
    if text.startswith("log:") or (".." in text and "," not in text and "/" not in text.partition("..")[0]):
        raise ValueError(f"is {given!r}, which is no range. {HOW}")
    try:
        return _choices(yaml.safe_load(f"[{text}]"))
    except (yaml.YAMLError, ValueError) as error:
        if isinstance(error, yaml.YAMLError):
            raise ValueError(f"is {given!r}, which cannot be read ({first_line(error)}). {HOW}") from error
        raise


def _range(log: str | None, low: str, high: str, step: str | None) -> Range:
    whole = all(_WHOLE.fullmatch(number) for number in (low, high, step or "1"))
    convert = int if whole else float
    begin, end = convert(low), convert(high)
    stride = None if step is None else convert(step)
    text = f"{log or ''}{low}..{high}" + (f"/{step}" if step else "")
    if not all(abs(number) <= (_MOST if whole else 1e300) for number in (begin, end, stride or 0)):
        raise ValueError(
            f"is {text}, whose numbers are too large for a sampler; stay below {_MOST if whole else 1e300:g}."
        )
    if begin >= end:
        raise ValueError(f"is {text}, which holds less than two values. Write the smaller end first.")
    if log and begin <= 0:
        raise ValueError(f"is {text}, and a logarithm needs numbers above 0. Begin above 0, or leave out log:.")
    if log and stride is not None:
        raise ValueError(f"is {text}; a range is log: or has steps, not both. Leave one out, or list the values.")
    found = Range(low=begin, high=end, step=stride, log=bool(log), whole=whole)
    return found if stride is None else _check_steps(found, text)


def _check_steps(found: Range, text: str) -> Range:
    """The range, if its steps lead from one end to the other."""
    step = found.step or 0.0
    if not 0 < step <= found.high - found.low:
        raise ValueError(f"is {text}; the step is above 0 and at most {option_text(found.high - found.low)}.")
    if not math.isclose(found.low + found.steps * step, found.high, rel_tol=1e-9, abs_tol=1e-9 * step):
        fits = found.low + math.floor((found.high - found.low) / step) * step
        end = int(fits) if found.whole else float(f"{fits:.12g}")
        raise ValueError(
            f"is {text}, whose steps do not end at {option_text(found.high)}. Nearest:"
            f" {option_text(found.low)}..{option_text(end)}/{option_text(step)}."
        )
    return found


def _choices(given: Sequence[Any]) -> Choices:
    values = tuple(_value(each) for each in given)
    if len(values) < 2:
        raise ValueError(
            f"has {f'one value, {option_text(values[0])}' if values else 'no value'}, so there is nothing to search. {HOW}"
        )
    labels = [option_text(value) for value in values]
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise ValueError(f"has {twice[0]} twice. Give each value once.")
    return Choices(values)


def _value(given: Any) -> Value:
    """A number, also one that YAML reads as text (1e-3), a word, true, false or none."""
    if isinstance(given, str):
        if _RANGE.fullmatch(given):
            raise ValueError(f"has the range {given} among values. Give one range, or values only.")
        if given == "none":
            return None
        return float(given) if re.fullmatch(_NUMBER, given) else given
    if given is None or isinstance(given, bool | int) or (isinstance(given, float) and math.isfinite(given)):
        return given
    raise ValueError(f"has {given!r} among its values; a value is a number, a word, true, false or none.")


def option_text(value: Any) -> str:
    """Return a value as it is written on the command line."""
    if value is None or isinstance(value, bool):
        return "none" if value is None else str(value).lower()
    if isinstance(value, float):
        return repr(value)
    return str(value)


def combinations(space: Space) -> Iterator[dict[str, Value]]:
    """Every combination in turn, the last key first; only of a space that ``size`` can count."""
    rows = [dimension.all or () for dimension in space.values()]
    return (dict(zip(space, values, strict=True)) for values in product(*rows))


def size(space: Space) -> int | None:
    """Return how many combinations there are; ``None`` where they are endless."""
    count = 1
    for dimension in space.values():
        values = dimension.all if isinstance(dimension, Choices) or _is_countable(dimension) else None
        if values is None:
            return None
        count *= len(values)
    return count


def _is_countable(dimension: Range) -> bool:
    """Return whether listing the values is reasonable."""
    return (dimension.whole or dimension.step is not None) and (dimension.high - dimension.low) / (
        dimension.step or 1
    ) < 1e6


def with_values(raw: Mapping[str, Any], values: Mapping[str, Value]) -> dict[str, Any]:
    """The run with these values. A slot that gets another name loses the options of the old one, as on the command line."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *path, last = key.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value
    base = merge({}, raw)
    for key, options in tree.items():
        below = base.get(key)
        if isinstance(options, dict) and isinstance(below, Mapping):
            tree[key] = {name: _deep(below.get(name), item) for name, item in options.items()}
    return merge(base, tree)


def _deep(below: Any, value: Any) -> Any:
    if not isinstance(below, Mapping) or not isinstance(value, Mapping):
        return deepcopy(value)
    return {**below, **{name: _deep(below.get(name), item) for name, item in value.items()}}
