"""One optimizer step through pipeline stages, by DeepSpeed's ``PipelineEngine`` on ZeRO 1.

W is the number of ranks of a stage, N the trained tokens of the whole optimizer step. DeepSpeed divides the last stage's
losses by the accumulation of its configuration (gas) and averages gradients over W, so each loss sum is multiplied by
gas · W/N: as in ``Engine``, splitting the same rows differently gives the same gradient.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mt_core.adapters.base import Adapter
from mt_core.model_protocols import Objective
from mt_core.nn import Batch, KVCache
from mt_core.protocols import GradientTransform
from mt_train.engine.engine import Engine
from mt_train.engine.norms import never_empty, pipeline_norm
from mt_train.engine.plan import Plan
from mt_train.engine.precision import DTYPES
from mt_train.engine.processes import Process, agree, all_reduce, share_text
from mt_train.engine.stages import UNUSED, Stage
from mt_train.engine.step import LossHead
from mt_train.engine.step_result import StepResult, StepSize

if TYPE_CHECKING:
    from mt_train.engine.stage_module import StageModule

EVALUATED_AT_ONCE = 4
"""Micro-batches of an evaluation per stage that run without a pause: a fifth of the time is then spent waiting."""


class PipelineEngine(Engine):
    """The layers of this rank's stage, their optimizer and DeepSpeed. Every call is collective over all stages."""

    module: StageModule

    def __init__(
        self,
        deepspeed: ModuleType,
        stage: Stage,
        objective: Objective,
        optimizer: torch.optim.Optimizer | GradientTransform,
        *,
        plan: Plan,
        process: Process,
        settings: dict[str, Any],
        adapter: Adapter | None = None,
        own_head: bool = False,
    ) -> None:
        from mt_train.engine.stage_module import StageModule  # DeepSpeed may be imported from here on

        self.stage = stage
        self._names: tuple[tuple[str, ...], ...] | None = None
        module = StageModule(stage, LossHead(stage.model.head, objective, own_head=own_head, tied=True), process.device)
        plain = optimizer if isinstance(optimizer, torch.optim.Optimizer) else optimizer.optimizer
        for group in plain.param_groups:
            if group.get("name") == UNUSED:
                group["params"][0].ds_pipe_replicated = False
                module.register_parameter(UNUSED, group["params"][0])
        super().__init__(deepspeed, module, optimizer, plan=plan, process=process, settings=settings, adapter=adapter)
        kept = set(stage.model.kept_names())
        for name, parameter in stage.model.named_parameters():
            if parameter.is_meta and parameter.is_floating_point() and name not in kept:  # as with the real ones
                parameter.data = parameter.data.to(DTYPES[plan.dtype])
        self._before_update: Callable[[], object] = lambda: None
        self._hook_into_the_step()

    def _hook_into_the_step(self) -> None:
        """DeepSpeed calls its instructions by this table, not by their names."""
        from deepspeed.runtime.pipe import schedule

        zero = self.zero_optimizer
        if hasattr(zero, "scaled_global_norm"):
            zero.scaled_global_norm = lambda norm_type=2: pipeline_norm(zero)
        else:
            never_empty(zero)
        update = self._engine._INSTRUCTION_MAP[schedule.OptimizerStep]

        def update_after_hooks(engine: Any, **keywords: Any) -> None:
            self._before_update()
            if self.directions is not None:
                self.directions.clip_and_take()
            update(engine, **keywords)

        own = {
            schedule.ReduceTiedGrads: lambda engine: _add_up_shared(engine),
            schedule.OptimizerStep: update_after_hooks,
        }
        self._engine._INSTRUCTION_MAP = {**self._engine._INSTRUCTION_MAP, **own}

    @property
    def sharing(self) -> Any:
        """See ``Engine``: the ranks of this stage."""
        return self._engine.data_parallel_group

    @property
    def stages(self) -> tuple[str, ...]:
        """See ``Engine``."""
        return self.stage.titles

    # ------------------------------------------------------------------------------------------------------- training

    def train_step(
        self,
        window: Sequence[Batch],
        stop: Callable[[], float] = lambda: False,
        before_update: Callable[[], object] = lambda: None,
    ) -> StepResult:
        """See ``Engine``. What ``stop`` says after the step travels with its sums."""
        size, self._before_update = self._size(window), before_update
        window, gas = list(self._couple(window)), self._engine.gradient_accumulation_steps()
        self._engine.micro_batches = len(window)  # the last window of an epoch may be shorter
        with self.block_figures.sums.collecting():
            self._engine.train_batch(self.module.feed.fill(window, [gas * each for each in self._scales(size)]))
        sums = self._sums(torch.tensor([float(stop())], device=self.process.device), blocks=True)
        norm = torch.as_tensor(self._norm(), dtype=torch.float64, device=sums.device)
        values = torch.cat([sums, norm.reshape(1)]).tolist()
        return self._result_of_zero(values, size)

    def _size(self, window: Sequence[Batch], *, counted: bool = True) -> StepSize:
        """The ranks of one stage have all rows between them."""
        return super()._size(window, counted=counted and self.stage.is_last)

    def _sums(self, wish: Tensor, *, blocks: bool = False) -> Tensor:
        """Return sums of the last stage's ranks, of what all ``blocks`` report where that is asked for, and of all ranks' wishes, on every
        rank."""
        sums = self.module.feed.sums
        head = self.module.loss_head
        if self._names is None:
            said = json.dumps([head.term_names, head.metric_names])
            self._names = tuple(map(tuple, json.loads(share_text(said, source=self.process.world - 1))))
        if sums is None:
            sums = torch.zeros(2 + 2 * sum(map(len, self._names)), dtype=torch.float64, device=wish.device)
        else:
            names = head.term_names, head.metric_names
            assert names == self._names, f"the objective's metrics were {self._names}, and are {names}: keep them"
        figures = self._block_pairs(sums) if blocks else sums[:0]
        return all_reduce(torch.cat([sums, figures, wish.double()]))

    def _reported(self) -> tuple[Sequence[str], Sequence[str]]:
        assert self._names is not None, "the sums of a forward have been shared"
        terms, metrics = self._names
        return terms, metrics

    # ----------------------------------------------------------------------------------------------------- evaluation

    @torch.no_grad()
    def sums_of(self, batches: Iterable[Batch], stop: Callable[[], bool]) -> Tensor | None:
        """See ``Engine``. ``stop`` is asked once for several batches."""
        waiting, total = iter(self._couple(batches)), None
        nothing = torch.zeros(1, device=self.process.device)
        while window := list(islice(waiting, EVALUATED_AT_ONCE * self.plan.pipeline)):
            if not agree(not stop()):
                self._engine.train()
                return None
            self._run(window)
            sums = self._sums(nothing)
            total = sums if total is None else total + sums
        self._engine.train()
        assert total is not None, "an evaluation needs at least one batch on every rank"
        return total[:-1]

    def _run(self, batches: Sequence[Batch], *cache: KVCache) -> None:
        assert not cache, "stages have no cache: texts are not generated in a pipeline"
        # DeepSpeed would average over micro-batches, and broadcast a shape that it does not have: sums are ours
        self._engine.eval_batch(
            self.module.feed.fill(batches), reduce_output=None, bcast_loss=False, num_micro_batches=len(batches)
        )

    # ------------------------------------------------------------------------------------------------------ parameters

    def named_parameters(self) -> Iterable[tuple[str, nn.Parameter]]:
        """This stage's parameters, under their names in the whole model."""
        return ((name, parameter) for name, parameter in self.module.model.named_parameters() if not parameter.is_meta)

    def whole_weights(
        self, *, only: Container[str] | None = None, averaged: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Every stage's weights on every rank, one at a time."""
        for name, parameter in self.module.model.named_parameters():
            if only is not None and name not in only:
                continue
            source = self.stage.holders[name][0] * self.plan.sharing_ranks
            here = self.process.rank == source
            weight = parameter.detach() if here else torch.empty_like(parameter, device=self.process.device)
            dist.broadcast(weight, source)
            yield name, weight.detach()


def _add_up_shared(engine: Any) -> None:
    """Add up the gradients of weights that several stages share, over those stages.

    DeepSpeed's own way looks at ``.grad``, which is empty where gradients are accumulated in another precision: the copies
    of a shared weight would drift apart without a word.
    """
    for parameter, group in engine.module.get_tied_weights_and_groups():
        if not parameter.requires_grad:  # an adapter's frozen ones, or those of a tied base
            continue
        in_half_precision = engine.using_bf16_optimizer
        zero = engine.optimizer
        gradient = parameter._hp_grad if in_half_precision else zero.get_gradient_for_reduction(parameter)
        assert gradient is not None, "a shared weight has no gradient: it would not be added up over its stages"
        dist.all_reduce(gradient, group=group)
