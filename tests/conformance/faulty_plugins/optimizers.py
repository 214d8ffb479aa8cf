from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Descent(torch.optim.Optimizer):
    """Momentum, without a fault."""

    def __init__(self, config: Any, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, {"lr": config.lr, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, parameter.grad, self.rate(group))

    def rate(self, group: dict[str, Any]) -> float:
        return float(group["lr"])

    def update(self, parameter: Tensor, gradient: Tensor, rate: float) -> None:
        momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
        momentum.mul_(0.9).add_(gradient)
        parameter.sub_(momentum, alpha=rate)


class ForgetsSome(Descent):
    """Its ``split`` does."""


class Uphill(Descent):
    def rate(self, group: dict[str, Any]) -> float:
        return -float(group["lr"])


class OwnRate(Descent):
    def rate(self, group: dict[str, Any]) -> float:
        return 1e-3


class DecaysAll(Descent):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(0.99)


class Forgetful(Descent):
    """The momentum is where no checkpoint looks."""

    def update(self, parameter: Tensor, gradient: Tensor, rate: float) -> None:
        self.__dict__.setdefault("kept", {}).setdefault(parameter, torch.zeros_like(parameter)).mul_(0.9).add_(gradient)
        parameter.sub_(self.__dict__["kept"][parameter], alpha=rate)


class KeepsText(Descent):
    def update(self, parameter: Tensor, gradient: Tensor, rate: float) -> None:
        super().update(parameter, gradient, rate)
        self.state[parameter]["phase"] = "warm"


class SeesShapes(Descent):
    """As LARS does: each step is as long as the tensor, whatever the gradient."""

    def update(self, parameter: Tensor, gradient: Tensor, rate: float) -> None:
        super().update(parameter, gradient * parameter.norm() / gradient.norm().clamp(min=1e-9), rate)


class Off(Descent):
    """Of another reference."""


class Uncounted(Descent):
    """The number of steps, by which the mean is corrected, is where no checkpoint looks."""

    steps = 0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.steps += 1
        super().step()

    def update(self, parameter: Tensor, gradient: Tensor, rate: float) -> None:
        mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter)).lerp_(gradient, 0.1)
        parameter.sub_(mean / (1 - 0.9**self.steps), alpha=rate)


class Keen(Descent):
    """It has an option for weight decay, and takes none."""


class Even(Descent):
    """Its ``split`` gives everything weight decay."""


class Early(Descent):
    """Knows the parameters that it was built with."""

    def __init__(self, config: Any, groups: list[dict[str, Any]]) -> None:
        super().__init__(config, groups)
        self.kept = {each: torch.zeros_like(each) for group in groups for each in group["params"]}

    def update(self, parameter: Tensor, gradient: Tensor, rate: float) -> None:
        self.state[parameter].setdefault("momentum", self.kept[parameter])
        super().update(parameter, gradient, rate)


class FirstGroup(Descent):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        groups, self.param_groups = self.param_groups, self.param_groups[:1]
        super().step()
        self.param_groups = groups


class Swelling(Descent):
    """Adds the share that weight decay takes away."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(1 + group["lr"] * group["weight_decay"])
