"""Numbers that each rank holds of a model, by the stages of its pipeline or where ranks divide its experts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from typing import Any

from torch import nn

from mt_core.components import OptimizerComponent
from mt_core.nn import Layer
from mt_train.assemble.parts import Parts
from mt_train.engine.experts import divided_parameters
from mt_train.engine.plan import Plan
from mt_train.planning.memory import Content
from mt_train.planning.meta_model import MetaModel
from mt_train.planning.moments import state_bytes


def contents(parts: Parts, plan: Plan, meta: MetaModel) -> list[Content]:
    """Return what the ranks of each stage have."""
    names = {id(parameter): name for name, parameter in meta.model.named_parameters()}
    component = parts.offers["optimizer"].component
    is_fused = isinstance(component, OptimizerComponent) and component.form == "fused"
    kept = state_bytes(parts.optimizer, meta.groups, names, flat=plan.zero_stage > 0, whole=is_fused)
    dense = {id(parameter) for name, parameter in meta.model.named_parameters() if name not in meta.quantized}
    quantized = sum(meta.quantized.values())  # all on one stage: no quantizer goes with a pipeline
    if plan.expert > 1:
        return [_divide(plan.expert, meta, kept, {id(each) for each in divided_parameters(meta.model, plan.expert)})]
    found = [_content(layers, meta.groups, kept, dense, quantized) for layers in meta.stages()]
    return [replace(each, keeps_gradients=not is_fused) for each in found]


def _content(
    layers: Sequence[Layer], groups: Sequence[dict[str, Any]], kept: Sequence[float], dense: Set[int], quantized: int
) -> Content:
    own = [parameter for parameter in distinct_parameters(layers) if id(parameter) in dense]
    here = {id(parameter) for parameter in own}
    return Content(
        quantized=quantized,
        parameters=tuple(parameter.numel() for parameter in own),
        groups=tuple(tuple(p.numel() for p in group["params"] if id(p) in here) for group in groups),
        state_bytes=tuple(kept),
        largest=max(sum(p.numel() for p in layer.module.parameters() if id(p) in dense) for layer in layers),
    )


def _divide(ranks: int, meta: MetaModel, kept: Sequence[float], experts: Set[int]) -> Content:
    """Return what a rank has where so many divide the experts, which are groups of their own to ZeRO. There is one stage."""
    layers = meta.stages()[0]
    own = distinct_parameters(layers)

    def numbers(parameters: Iterable[nn.Parameter], *, divided: bool) -> tuple[int, ...]:
        chosen = (each for each in parameters if (id(each) in experts) == divided)
        return tuple(each.numel() // (ranks if divided else 1) for each in chosen)

    def both(parameters: Iterable[nn.Parameter]) -> int:
        every = list(parameters)
        return sum(numbers(every, divided=False)) + sum(numbers(every, divided=True))

    groups = [
        [
            (found, size)
            for group, size in zip(meta.groups, kept, strict=True)
            if (found := numbers(group["params"], divided=divided))
        ]
        for divided in (False, True)
    ]
    return Content(
        parameters=numbers(own, divided=False),
        experts=numbers(own, divided=True),
        groups=tuple(found for half in groups for found, _ in half),
        expert_groups=len(groups[1]),
        state_bytes=tuple(size for half in groups for _, size in half),
        largest=max(both(layer.module.parameters()) for layer in layers),
    )


def distinct_parameters(layers: Sequence[Layer]) -> list[nn.Parameter]:
    """Return the parameters of layers, a shared one once."""
    return list({id(parameter): parameter for layer in layers for parameter in layer.module.parameters()}.values())
