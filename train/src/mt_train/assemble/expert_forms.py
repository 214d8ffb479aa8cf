"""The two forms of experts: which one a run's model has, and weights in the form of the model that takes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mt_core.config.experts import ExpertLayout
from mt_core.nn import expert_layouts
from mt_core.weights import fused_experts, listed_experts
from mt_train.assemble.parts import Parts
from mt_train.engine.build import TensorSource
from mt_train.engine.meta import on_meta


def fit_experts(parts: Parts, source: TensorSource, names: Collection[str]) -> TensorSource:
    """The tensors with experts in the form that these names of a model's parameters have; where they fit already, as they are."""
    wanted = set(names)
    if wanted <= source.keys() or source.keys() <= wanted:
        return source
    layouts = layouts_of(parts)
    return fused_experts(source, layouts) if is_fused(wanted, layouts) else listed_experts(source, layouts)


def is_fused(names: Collection[str], layouts: Mapping[str, ExpertLayout]) -> bool:
    """Return whether a model with parameters of these names has its experts fused."""
    return any(f"{place}.{tensor}" in names for place, layout in layouts.items() for tensor in layout.fused_shapes())


def layouts_of(parts: Parts) -> dict[str, ExpertLayout]:
    """Return the layouts of the experts of a run's model, by the names of their modules; none without a mixture."""
    with on_meta():
        return expert_layouts(parts.model())
