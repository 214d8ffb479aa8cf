"""Plain torch in the place of an engine: what adapters read and write there, without any layout."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from mt_core import Adapter


class PlainContext:
    """Implements ``mt_core.AdapterContext``."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, total_steps: int) -> None:
        self._parameters, self._model, self._state = dict(model.named_parameters()), model, optimizer.state
        self.step, self.total_steps, self.rate = step, total_steps, optimizer.param_groups[0]["lr"]

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        return self._model.named_modules()

    def total(self, value: Tensor) -> Tensor:
        return value

    def step_sum(self, name: str) -> Tensor:
        raise NotImplementedError("no adapter here reads what blocks gather")

    def moments(self, name: str) -> tuple[str, ...]:
        return tuple(key for key, value in self._state[self._parameters[name]].items() if value.dim())

    def read(self, name: str, part: str = "weight") -> Tensor:
        return self._place(name, part).detach().clone()

    @torch.no_grad()
    def write(self, name: str, value: Tensor, part: str = "weight") -> None:
        place = self._place(name, part)
        assert place.shape == value.shape, name
        place.copy_(value)

    def _place(self, name: str, part: str) -> Tensor:
        parameter = self._parameters[name]
        if part == "weight":
            return parameter.detach()
        assert parameter.requires_grad, f"{name} is frozen"
        return parameter.grad if part == "gradient" else self._state[parameter][part]


def train(
    model: nn.Module,
    adapter: Adapter,
    optimizer: torch.optim.Optimizer,
    batches: list[tuple[Tensor, Tensor]],
    *,
    first: int = 1,
    total_steps: int | None = None,
) -> Iterator[PlainContext]:
    """One update a batch, on squared errors; gives the context after each."""
    for step, (x, y) in enumerate(batches, start=first):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        context = PlainContext(model, optimizer, step, total_steps or len(batches))
        adapter.after_backward(context)
        optimizer.step()
        adapter.after_step(context)
        yield context
