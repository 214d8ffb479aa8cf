"""Parameter groups: which parameters share a rate and a weight decay. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from mt_core.config.base import MtConfig, Patterns
from mt_core.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK = re.compile(r"\.(\d+)\.")
"""The number of a block in the name of its parameter, as in ``model.layers.3.mlp.up_proj.weight``."""


class Rate(MtConfig):
    """The rate of the parameters that a pattern names."""

    scale: float | None = Field(None, gt=0, description="multiple of optimizer.lr")
    value: float | None = Field(None, gt=0, le=1, description="base rate itself (per update)")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.scale is None) == (self.value is None):
            given = (
                "neither is set" if self.scale is None else f"scale={self.scale} and value={self.value} are both set"
            )
            raise ValueError(f"a rate is a scale of optimizer.lr or a value, and {given}; keep one of them")
        return self

    def of(self, base: float) -> float:
        """The rate itself."""
        return self.value if self.value is not None else base * (self.scale or 1.0)


class GroupOptions(MtConfig):
    """Options that divide an optimizer's parameters into groups; subclass it to add the optimizer's own options."""

    lr: float = Field(
        3e-4, gt=0, le=1, description="base learning rate, multiplied by the schedule's factor (per update)"
    )
    weight_decay: float = Field(
        0.0, ge=0, description="share of a matrix taken away per update, times the learning rate; vectors keep all"
    )
    no_decay: Patterns = Field(
        (), description="patterns (* and ?) of matrices that weight decay leaves alone as well, such as *embed*"
    )
    rates: dict[str, Rate] = Field(
        {}, description="pattern (* and ?) → {scale: …} or {value: …}; the first that matches a name counts"
    )
    layer_decay: float | None = Field(
        None, gt=0, le=1, description="the rate of a block is that of the next one times this; none is one rate for all"
    )


def whole_shape(parameter: Tensor) -> tuple[int, ...]:
    """Return a parameter's whole shape, even if this rank has a flat slice (ZeRO 3) or only some experts' rows (``part``)."""
    shape, (_, parts) = tuple(getattr(parameter, "ds_shape", parameter.shape)), getattr(parameter, "part", (0, 1))
    return shape if parts == 1 else (shape[0] * parts, *shape[1:])


MEDIA = "media"
"""Name of what encodes media in a model (``TrainModel.media``), which the names of its parameters begin with."""


def is_of_media(name: str) -> bool:
    """Return whether this is the name of something that encodes media, or a pattern of such names."""
    return name.startswith(f"{MEDIA}.")


def block_number(name: str) -> int | None:
    """Return the index of the block of a parameter, from its name; ``None`` for embedding, last norm, head and encoders."""
    found = None if is_of_media(name) else _BLOCK.search(name)
    return int(found[1]) if found else None


def split_decay(named: Sequence[tuple[str, Tensor]], config: MtConfig) -> list[dict[str, Any]]:
    """Matrices with weight decay, vectors (norms, biases) without, each divided once more where ``GroupOptions`` say so.

    The usual split of the field (https://github.com/karpathy/nanoGPT/blob/master/model.py). Empty groups are left out.
    A config that is no ``GroupOptions`` may have a ``weight_decay``. Raises ``UsageError`` for a pattern that matches no name.
    """
    decay = float(getattr(config, "weight_decay", 0.0))
    own = config if isinstance(config, GroupOptions) else GroupOptions(weight_decay=decay)
    names = [name for name, _ in named]
    require_matches("optimizer.no_decay", own.no_decay, names)
    require_matches("optimizer.rates", tuple(own.rates), names)
    _require_turns(tuple(own.rates), names)
    matrices = {name for name, each in named if _is_matrix(name, each) and not matching_pattern(name, own.no_decay)}
    distances = layers_from_head(names)
    groups: dict[str, dict[str, Any]] = {}
    for name, parameter in sorted(named, key=lambda each: each[0] not in matrices):
        title, own_decay = ("decay", decay) if name in matrices else ("no_decay", 0.0)
        label, rate = _rate(name, own, getattr(parameter, "from_head", distances[name]))
        group = {"name": title + label, "params": [], "weight_decay": own_decay, **rate}
        groups.setdefault(title + label, group)["params"].append(parameter)
    return list(groups.values())


def _is_matrix(name: str, parameter: Tensor) -> bool:
    """Return whether this is a matrix or several; the biases of fused experts, (X, F), are vectors."""
    return len(whole_shape(parameter)) >= 2 and not name.endswith("_bias")


def matching_pattern(name: str, patterns: Iterable[str]) -> str | None:
    """Return the first of the patterns (* and ?) that matches the name."""
    return next((pattern for pattern in patterns if fnmatchcase(name, pattern)), None)


def require_matches(key: str, patterns: Iterable[str], names: Sequence[str]) -> None:
    """Raise ``UsageError`` with the key, the pattern and the nearest name for a pattern that matches no name."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UsageError(
                f"{key}: {pattern!r} matches none of {len(names)} parameters. {did_you_mean(pattern, names)}Patterns have"
                f" * and ?, and fit whole names, such as {names[0] if names else 'none'}"
            )


def _require_turns(patterns: Sequence[str], names: Sequence[str]) -> None:
    """Raises ``UsageError`` for a pattern of ``optimizer.rates`` that never counts, as others come before it."""
    counting = {matching_pattern(name, patterns) for name in names}
    for place, pattern in enumerate(patterns):
        if pattern not in counting:
            raise UsageError(
                f"optimizer.rates: {pattern!r} never counts: all that it fits also fits {', '.join(map(repr, patterns[:place]))}, and"
                " the first pattern that fits a name counts. Put it first, or leave it out"
            )


def _rate(name: str, options: GroupOptions, distance: int) -> tuple[str, dict[str, float]]:
    """Return what is added to the group's name, and its own ``lr`` where it has one."""
    pattern, label, rate = matching_pattern(name, options.rates), "", options.lr
    if pattern is not None:
        label, rate = f" {pattern}", options.rates[pattern].of(rate)
    if options.layer_decay is not None:
        label, rate = f"{label} {distance} from the head", rate * options.layer_decay**distance
    return label, {"lr": rate} if label else {}


def layers_from_head(names: Sequence[str]) -> dict[str, int]:
    """Return how many layers each parameter of a model is away from the head; all that comes before the first block is one layer.

    As in BEiT's fine-tuning (https://arxiv.org/abs/2106.08254): embedding, blocks, and what follows them. Encoders of media come before
    the first block, wherever their names stand. ``split_decay`` knows trained names alone; a parameter's ``from_head`` counts before them.
    """
    numbers = [block_number(name) for name in names]
    blocks = [number for number in numbers if number is not None]
    last, seen, distances = max(blocks, default=-1) + 1, False, {}
    for name, number in zip(names, numbers, strict=True):
        seen = seen or number is not None
        is_behind = not blocks or (seen and not is_of_media(name))
        distances[name] = last - number if number is not None else 0 if is_behind else last + 1
    return distances
