from __future__ import annotations

from typing import Any

import torch


class Quiet:
    """A callback without a fault."""

    def __init__(self, config: Any) -> None:
        self.steps = 0

    def on_step_end(self, context: Any) -> None:
        self.steps += 1


class Misspelt(Quiet):
    def on_steps_end(self, context: Any) -> None:
        self.steps += 1


class Lonely(Quiet):
    def on_step_end(self) -> None:  # type: ignore[override]
        self.steps += 1


class Opaque(Quiet):
    def state_dict(self) -> dict[str, Any]:
        return {"mean": torch.zeros(2)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Swallows(Quiet):
    """Nothing that is raised in its events gets out."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return _swallow(found) if name.startswith("on_") else found


def _swallow(method: Any) -> Any:
    def quiet(context: Any) -> None:
        try:
            method(context)
        except Exception:  # noqa: BLE001 - that is what is wrong with it
            return

    return quiet


class Local(Quiet):
    """Takes every slice for a whole parameter."""

    def on_model_built(self, context: Any) -> None:
        shapes = {name: parameter.numel() for name, parameter in context.model.named_parameters()}
        for name, _, values in context.weights.slices():
            assert values.numel() == shapes[name], "a slice is shorter than its parameter"


class Amnesiac(Quiet):
    """From the third step on it changes gradients, and does not save how many there were."""

    def on_before_optimizer_step(self, context: Any) -> None:
        if self.steps >= 2:
            for group in context.weights.optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad.mul_(-1)
