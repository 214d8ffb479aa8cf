"""Parameters of an engine: under which names, whole wherever ZeRO and expert ranks have put them, and which ones a checkpoint needs."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from mt_core.adapters.base import Adapter
from mt_train.engine.averaging import Averaging, use_averaged_weights
from mt_train.engine.build import gather_parameters
from mt_train.engine.experts import ExpertRanks, gather_rows
from mt_train.engine.plan import Plan
from mt_train.engine.step import Trained


class EngineParameters:
    """The part of ``Engine`` that knows its parameters and their optimizer."""

    plan: Plan
    module: Trained
    adapter: Adapter
    experts: ExpertRanks | None
    _engine: Any

    @property
    def zero_optimizer(self) -> Any:
        """DeepSpeed's optimizer (at stage 0 the plain one)."""
        return self._engine.optimizer

    @property
    def inner_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer that we made, under DeepSpeed's wrapper."""
        return self.zero_optimizer if self.plan.trains_weights else self.zero_optimizer.optimizer  # type: ignore[no-any-return]

    def optimizer_tensor(self, parameter: Tensor) -> Tensor:
        """Return what the optimizer knows of a whole parameter, at ZeRO 0: itself, or its master."""
        return parameter if self.plan.trains_weights else self.zero_optimizer.master_of(parameter)

    def use_averaged_weights(self) -> AbstractContextManager[None]:
        """Inside, the weights to use where those that are trained are others; every rank must enter and leave."""
        return use_averaged_weights(self.zero_optimizer, self.inner_optimizer)

    def named_parameters(self) -> Iterable[tuple[str, nn.Parameter]]:
        """The model's parameters under its own names."""
        return self.module.model.named_parameters()

    def names_to_save(self) -> set[str]:
        """Return the names that a trained-only checkpoint needs: trained weights, those that the model changes in ``after_step``, and
        what else the adapter cannot make again."""
        model = self.module.model
        trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        changed = model.kept_names() if model.steps else ()
        return trained.union(changed, self.adapter.saved_state(model))

    def whole_weights(
        self, *, only: Container[str] | None = None, averaged: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Live weights by name, one at a time, perhaps only some; every rank must walk through all of them.

        Those to use; where they are not ``averaged``, those that gradients are taken at.
        """
        passing = averaged and isinstance(self.inner_optimizer, Averaging)  # whoever keeps them would find others there
        with self.use_averaged_weights() if averaged else nullcontext():
            for name, parameter in self.named_parameters():
                if only is None or name in only:
                    with gather_parameters([parameter]):
                        weight = self.join_rows(parameter, parameter.detach())
                        yield name, weight.clone() if passing else weight

    def join_rows(self, parameter: Tensor, value: Tensor) -> Tensor:
        """Return the whole of a parameter's value of which expert ranks have some rows each; as it is elsewhere. Collective."""
        return value if self.experts is None else gather_rows(parameter, value, self.experts.group)
