"""Limits that a component has by its own options, or by others of the run. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Set

from mt_core.components import OptimizerComponent
from mt_core.config.base import Layout
from mt_core.errors import Fault
from mt_core.plugins.host import Offer
from mt_train.config.run import RunConfig, SlotRef


def limit_faults(offer: Offer, config: RunConfig, world: int, layouts: Set[Layout]) -> Iterator[Fault]:
    """Yield layouts that a component cannot do with its config, of which its tests cover more (``Component.limits``), and compiled
    blocks beside an optimizer that changes weights in the backward pass of several ranks."""
    component = offer.component
    if config.train.compile and world > 1 and isinstance(component, OptimizerComponent) and component.form == "fused":
        # A rank that gives up compiling a block, as its rows have more shapes than torch compiles, has that block's gradients in
        # another order than the others, which would exchange them for the gradients of other weights.
        problem = f"{component.name} exchanges each gradient as it arrives, and compiled blocks may have another order on each rank."
        yield Fault(key="train.compile", problem=problem, fix="Leave --train.compile out, or train on one process.")
    slot = getattr(config, offer.kind, None) or config.extensions.get(offer.kind)
    if component.limits is None or not isinstance(slot, SlotRef):
        return
    for key, reason in component.limits(slot.options).items():
        if key in layouts:
            yield Fault(
                key="parallel", problem=f"{component.name} cannot do {key}: {reason}.", fix="Choose another layout."
            )
