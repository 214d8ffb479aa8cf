"""Shares of a model's weights: those that an adapter stands over, and those that a quantizer has stored in fewer bits."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Set
from typing import Any

from torch import nn

from mt_core.adapters.linear import adapted_layers
from mt_core.groups import whole_shape
from mt_core.nn.objective import split_objective_name
from mt_train.engine.build import stored_layers

MOST_DENSE = 0.5
"""Share of the weights that a quantizer may leave as they are without a word."""


def adapter_reach(name: str, model: nn.Module) -> dict[str, Any] | None:
    """Return how many linear layers the adapter stands for, and what share of the model's weights these have; ``None`` for one that stands
    for none, as full training."""
    layers = [layer for _, layer in adapted_layers(model)]
    if not layers:
        return None
    own = {id(each) for layer in layers for _, each in layer.own_parameters()}
    reached = sum(layer.in_features * layer.out_features for layer in layers)
    return {"name": name, "layers": len(layers), "share": reached / _count(model, own)}


def describe_adapter(reach: Mapping[str, Any]) -> str:
    """Describe the reach in one line: ``lora on 28 linear layers, which have 91.3% of the model's weights``."""
    return f"{reach['name']} on {reach['layers']:,} linear layers, which have {100 * reach['share']:.1f}% of the model's weights"


def quantizer_warnings(name: str, model: nn.Module) -> list[str]:
    """Return a warning where most of what the model would have in memory without the quantizer is there with it, too."""
    stored = sum(layer.in_features * layer.out_features for _, layer in stored_layers(model))
    own = {id(each) for _, layer in adapted_layers(model) for _, each in layer.own_parameters()}
    return dense_warnings(name, stored, _count(model, own))


def count_stored(model: nn.Module, names: Collection[str]) -> tuple[int, int]:
    """Return how many weights of a dense model have these names, and how many it has."""
    own = {id(each) for _, layer in adapted_layers(model) for _, each in layer.own_parameters()}
    return sum(each.numel() for name, each in model.named_parameters() if name in names), _count(model, own)


def dense_warnings(name: str, stored: int, total: int) -> list[str]:
    """Return a warning where a quantizer has ``stored`` less than half of ``total`` weights."""
    share = 1 - stored / total
    if share <= MOST_DENSE:
        return []
    return [
        f"quantizer {name} leaves {100 * share:.0f}% of the model's weights as they are ({total - stored:,} of {total:,}): it stores linear"
        " layers of blocks, and no embeddings, head or other tensors"
    ]


def _count(model: nn.Module, own: Set[int]) -> int:
    """Return how many weights the model itself has, those that are stored in another way included."""
    dense = sum(
        math.prod(whole_shape(each))
        for name, each in model.named_parameters()
        if id(each) not in own and split_objective_name(name) is None
    )
    return dense + sum(layer.in_features * layer.out_features for _, layer in stored_layers(model))
