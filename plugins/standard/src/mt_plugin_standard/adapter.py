"""The adapter that adapts nothing: every parameter is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mt_core import Adapter, MtConfig

if TYPE_CHECKING:
    from mt_core.nn import TrainModel


class FullConfig(MtConfig):
    """Full training has no options."""


class Full(Adapter):
    """All parameters are trainable; a shared one counts once."""

    def trainable_parameters(self, model: TrainModel) -> list[str]:
        """Names of all parameters."""
        return [name for name, _ in model.named_parameters()]


def build_full(config: FullConfig) -> Full:
    """Full training."""
    return Full()
