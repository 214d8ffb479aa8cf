"""The base of every adapter: each method is a no-op, so that a variant writes only what is its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mt_core.nn import TrainModel


class Adapter:
    """One way of making part of a model trainable.

    The order of the calls: ``inject`` once the model is built and its base weights are in place, then
    ``trainable_parameters`` and ``parameter_groups`` before the optimizer is made.
    """

    def inject(self, model: TrainModel) -> None:
        """Change the model in place: replace projections, add parameters."""

    def trainable_parameters(self, model: TrainModel) -> list[str]:
        """Names of the parameters that are trained, spelled out."""
        raise NotImplementedError

    def saved_state(self, model: TrainModel) -> list[str]:
        """Names of the tensors that a trained-only checkpoint needs."""
        return self.trainable_parameters(model)

    def parameter_groups(self, model: TrainModel, rate: float) -> list[dict[str, Any]]:
        """Named groups ``{"name", "params", …}`` that this adapter claims; the optimizer's policy divides the rest."""
        return []
