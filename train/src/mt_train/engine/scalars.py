"""Numbers in an optimizer's state that are no tensors of a parameter, such as Adam's step count."""

from __future__ import annotations

from torch import Tensor

from mt_train.engine.fragments import flat_parameters, title_of
from mt_train.engine.stateful import StatefulEngine, names_of_optimizer_tensors


def scalars(engine: StatefulEngine) -> dict[str, dict[str, float]]:
    """Zero-dimensional optimizer state (Adam's step count) of each group: that of the parameter that is furthest."""
    found: dict[str, dict[str, float]] = {}
    for number, group in enumerate(engine.inner_optimizer.param_groups):
        furthest = found.setdefault(title_of(group, number), {})  # several groups have one where expert ranks divide
        for parameter in flat_parameters(engine, number):
            for key, value in _scalars_of(engine, parameter).items():
                furthest[key] = max(value, furthest.get(key, value))
    return found


def own_scalars(engine: StatefulEngine) -> dict[str, dict[str, float]]:
    """Return the scalars of each parameter that differ from its group's, by name.

    Where parameters are whole, an optimizer leaves alone what has no gradient: a head that the objective does not use has no
    state, and a layer that some steps leave out is behind the others.
    """
    if engine.plan.zero_stage > 0:
        return {}
    of_group = scalars(engine)
    names = names_of_optimizer_tensors(engine)
    return {
        names[parameter]: own
        for number, group in enumerate(engine.inner_optimizer.param_groups)
        for parameter in group["params"]
        if (own := _scalars_of(engine, parameter)) != of_group[title_of(group, number)]
    }


def _scalars_of(engine: StatefulEngine, parameter: Tensor) -> dict[str, float]:
    state = engine.inner_optimizer.state.get(parameter, {})
    return {
        key: value if isinstance(value, int) else float(value)
        for key, value in state.items()
        if isinstance(value, int | float) or (isinstance(value, Tensor) and value.dim() == 0)
    }
