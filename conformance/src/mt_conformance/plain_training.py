"""Steps of a model with an adapter in this process, without an engine: milliseconds each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from mt_conformance import trainer
from mt_core.adapters.base import Adapter
from mt_core.errors import ComponentError
from mt_core.nn import Batch, TokenObjective, TrainModel


class PlainTraining:
    """Steps with an adapter as the loop does them: backward, ``after_backward``, update, ``after_step``; one batch a step.

    ``schedule`` is what the rates of an update are multiplied by, from 0, as a component of schedules gives it.
    """

    def __init__(
        self,
        parts: trainer.Parts,
        model: TrainModel,
        adapter: Adapter,
        *,
        rate: float,
        steps: int,
        schedule: Callable[[int], float] | None = None,
    ) -> None:
        self.model, self.adapter, self.steps, self.done = model, adapter, steps, 0
        self.peak = rate
        self.factor = schedule or (lambda k: 1.0)
        groups = trainer.parameter_groups(parts, model, adapter)
        own = float(getattr(parts.config.optimizer.options, "lr", rate))
        for group in groups:  # a group with a rate of its own keeps its share of it
            group["lr"] = rate * group.get("lr", own) / own
        self.optimizer = torch.optim.AdamW([{**group, "weight_decay": 0.0} for group in groups], lr=rate)
        self.peaks = [float(group["lr"]) for group in groups]

    @property
    def rate(self) -> float:
        """Return the rate of the update that is made now, or was made last."""
        return self.peak * self.factor(max(self.done - 1, 0))

    def run(self, batches: Sequence[Batch]) -> list[float]:
        """A step for each; their losses, before the update, in nats per token."""
        self.model.train()
        return [self._step(batch) for batch in batches]

    def _step(self, batch: Batch) -> float:
        with self.model.sums.collecting():
            sums = TokenObjective().loss(self.model(batch), self.model.head, batch)
            self.model.loss_factor.value = 1 / max(batch.trained_tokens, 1)
            loss = sums.loss_sum / sums.token_count
            loss.backward()  # type: ignore[no-untyped-call]
        self.done += 1
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            group["lr"] = peak * self.factor(self.done - 1)
        context = PlainContext(self)
        if self.adapter.steps:
            self.adapter.after_backward(context)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.adapter.steps:
            self.adapter.after_step(context)
        if self.model.steps:
            self.model.after_step(context)
        return float(loss.detach())


class PlainContext:
    """Implements ``mt_core.AdapterContext`` for parameters that are whole and here."""

    def __init__(self, training: PlainTraining) -> None:
        self.step, self.total_steps, self.rate = training.done, training.steps, training.rate
        self._model, self._state = training.model, training.optimizer.state
        self._parameters = dict(training.model.named_parameters())

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        """All of the model's."""
        yield from self._model.named_modules()

    @torch.no_grad()
    def read(self, name: str, part: str = "weight") -> Tensor:
        """See ``AdapterContext``."""
        live = self._live_tensor(name, part).detach()
        return live.to(torch.float32, copy=True) if self._parameters[name].requires_grad else live.clone()

    @torch.no_grad()
    def write(self, name: str, value: Tensor, part: str = "weight") -> None:
        """See ``AdapterContext``."""
        live = self._live_tensor(name, part)
        if live.shape != value.shape:
            raise ComponentError(f"{part} of {name} is {tuple(live.shape)}, and {tuple(value.shape)} was to be written")
        live.detach().copy_(value)

    def total(self, value: Tensor) -> Tensor:
        """See ``AdapterContext``: there is one process."""
        return value

    def step_sum(self, name: str) -> Tensor:
        """See ``AdapterContext``."""
        if name not in self._model.sums.gathered:
            raise ComponentError(f"no block gathered {name!r} in this step")
        return self._model.sums.gathered[name].clone()

    def moments(self, name: str) -> tuple[str, ...]:
        """See ``AdapterContext``."""
        parameter = self._live_tensor(name, "weight")
        found = self._state.get(parameter, {}).items()
        return tuple(sorted(key for key, each in found if isinstance(each, Tensor) and each.shape == parameter.shape))

    def _live_tensor(self, name: str, part: str) -> Tensor:
        parameter = self._parameters.get(name)
        if parameter is None:
            raise ComponentError(f"there is no parameter {name!r}")
        if part == "weight":
            return parameter
        found = parameter.grad if part == "gradient" else self._state.get(parameter, {}).get(part)
        if not isinstance(found, Tensor):
            raise ComponentError(f"{name} has no {part!r} now")
        return found
