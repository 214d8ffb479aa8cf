"""Dropout of a run: the options and the modules that drop values at random."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from mt_core.config.base import MtConfig
from mt_train.config.run import RunConfig


def dropouts(config: RunConfig) -> Iterator[tuple[str, float]]:
    """Give each option of the model and the adapter that drops values at random, as in ``--adapter.dropout``, with its rate."""
    slots: dict[str, MtConfig] = {"model": config.model.options, "adapter": config.adapter.options}
    for slot, options in slots.items():
        for name, value in options:
            if "dropout" in name and isinstance(value, int | float) and value > 0:
                yield f"--{slot}.{name.replace('_', '-')}", value


def has_dropout(config: RunConfig, model: nn.Module) -> bool:
    """Return whether an option asks for dropout, which other ranks of a pipeline may hold, or a module of this rank has it."""
    rates = (module.p for module in model.modules() if isinstance(module, nn.Dropout))
    return any(rate > 0 for rate in rates) or any(dropouts(config))
