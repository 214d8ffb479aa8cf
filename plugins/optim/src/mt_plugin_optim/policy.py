"""Division of parameters for optimizers that tell matrices or blocks apart: ``split_decay``, and then by place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mt_core import MtConfig, block_number, split_decay, whole_shape

if TYPE_CHECKING:
    from torch import Tensor

Named = Sequence[tuple[str, "Tensor"]]


def is_vector(name: str, shape: Sequence[int]) -> bool:
    """Return whether it counts as a vector, as for ``split_decay``: also the biases of fused experts, (X, F)."""
    return len(shape) < 2 or name.endswith("_bias")


def is_hidden(name: str, shape: Sequence[int]) -> bool:
    """Return whether it is a matrix of a block."""
    return len(shape) == 2 and block_number(name) is not None and not is_vector(name, shape)


def split_hidden(named: Named, config: MtConfig) -> list[dict[str, Any]]:
    """``transformed`` is true for matrices of blocks, and false for embedding, head and vectors."""
    hidden = {id(each) for name, each in named if is_hidden(name, whole_shape(each))}
    return _divide(
        named, config, "transformed", lambda name, each: id(each) in hidden, {True: "matrices", False: "others"}
    )


def transform_all(named: Named, config: MtConfig) -> list[dict[str, Any]]:
    """``transformed`` is true everywhere, for a rule that needs whole gradients of embedding, head and vectors, too."""
    return [{**group, "transformed": True} for group in split_decay(named, config)]


def split_blocks(named: Named, config: MtConfig) -> list[dict[str, Any]]:
    """``block`` is the number of a block, and ``None`` for what is in none."""
    numbers = {block_number(name) for name, _ in named}
    titles = {number: "no block" if number is None else f"block {number}" for number in numbers}
    return _divide(named, config, "block", lambda name, each: block_number(name), titles)


def _divide(
    named: Named, config: MtConfig, key: str, place: Callable[[str, Tensor], Any], titles: dict[Any, str]
) -> list[dict[str, Any]]:
    names = {id(each): name for name, each in named}
    divided = []
    for group in split_decay(named, config):
        for value, title in titles.items():
            own = [each for each in group["params"] if place(names[id(each)], each) == value]
            if own:
                divided.append({**group, "name": f"{title} {group['name']}", "params": own, key: value})
    return divided
