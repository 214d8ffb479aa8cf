"""The two forms of experts: which one a run's model has, and weights in the form of the model that takes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import nn

from mt_core.config.experts import ExpertLayout
from mt_core.errors import CheckpointError
from mt_core.nn import Experts, ListedExperts, expert_layouts
from mt_core.weights import fused_experts, listed_experts
from mt_train.assemble.parts import Parts
from mt_train.engine.build import TensorSource
from mt_train.engine.meta import on_meta


def fit_experts(parts: Parts, source: TensorSource, names: Collection[str]) -> TensorSource:
    """Return the tensors with experts in the form that these names of a model's parameters have; where they fit already, as they are."""
    wanted = set(names)
    if wanted <= source.keys() or source.keys() <= wanted:
        return source
    layouts = layouts_of(parts)
    return fused_experts(source, layouts) if is_fused(wanted, layouts) else listed_experts(source, layouts)


def is_fused(names: Collection[str], layouts: Mapping[str, ExpertLayout]) -> bool:
    """Return whether a model with parameters of these names has its experts fused."""
    return any(f"{place}.{tensor}" in names for place, layout in layouts.items() for tensor in layout.fused_shapes())


def experts_form(model: nn.Module) -> str | None:
    """Return ``fused`` or ``listed``, as a manifest says it; ``None`` for a model without experts."""
    forms = {type(module) for module in model.modules() if isinstance(module, Experts | ListedExperts)}
    return None if not forms else "fused" if any(issubclass(form, Experts) for form in forms) else "listed"


def refuse_other_form(saved: str | None, model: nn.Module) -> None:
    """Raise ``CheckpointError`` where a checkpoint has the state of an optimizer for experts in the other form."""
    form = experts_form(model)
    if saved is not None and form is not None and saved != form:
        raise CheckpointError(
            f"the checkpoint has its experts {saved}, and this run has them {form}: an adapter or a quantizer has come or gone. Resume it"
            " as it was, or start a new run from its weights (mt-convert, then --model.weights)"
        )


def layouts_of(parts: Parts) -> dict[str, ExpertLayout]:
    """Return the layouts of the experts of a run's model, by the names of their modules; none without a mixture."""
    with on_meta():
        return expert_layouts(parts.model())
