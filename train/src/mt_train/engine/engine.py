"""One optimizer step on DeepSpeed, with one owner of the loss denominator and one host synchronisation.

W ranks share parameters, and N is the trained tokens of the whole optimizer step, each counted as much as it weighs. Each micro-batch's
loss sum is scaled by W/N before its backward, and DeepSpeed averages gradients over W: however rows are divided, they are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from mt_core.adapters.base import Adapter
from mt_core.nn import Batch, KVCache
from mt_core.nn.batch import mean_of
from mt_core.protocols import GradientTransform
from mt_train.engine.block_figures import BlockFigures
from mt_train.engine.coupling import couple, share_documents
from mt_train.engine.deepspeed_import import redirect_prints
from mt_train.engine.experts import ExpertRanks
from mt_train.engine.gathering import forget_modules, gather_around_loss
from mt_train.engine.group_sizes import group_sizes
from mt_train.engine.masters import Bf16Engine
from mt_train.engine.norms import settle_norm
from mt_train.engine.parameters import EngineParameters
from mt_train.engine.plan import Plan
from mt_train.engine.precision import keep_precision
from mt_train.engine.processes import Process, agree, all_reduce
from mt_train.engine.repetition import make_repetition
from mt_train.engine.stages import UNUSED
from mt_train.engine.step import Reader, Trained, weighted_loss
from mt_train.engine.step_result import StepResult, StepSize, mean_figures, measure_size
from mt_train.engine.transfer import Transfer
from mt_train.engine.transform import PreconditionedGradients, transformed_parameters


class Engine(EngineParameters):
    """A model, its optimizer and DeepSpeed."""

    repeat: Callable[[], None] | None = None
    """Computes the present step again, before its update; ``None`` where that cannot be done."""

    def __init__(
        self,
        deepspeed: ModuleType,
        module: Trained,
        optimizer: torch.optim.Optimizer | GradientTransform,
        *,
        plan: Plan,
        process: Process,
        settings: dict[str, Any],
        adapter: Adapter | None = None,
        experts: ExpertRanks | None = None,
    ) -> None:
        self.plan = plan
        self.process = process
        self.transfer = Transfer(process.device)
        self.module = module
        self.experts = experts
        self.block_figures = BlockFigures(module.model.sums)
        self.adapter = adapter or Adapter()
        transform = None if isinstance(optimizer, torch.optim.Optimizer) else optimizer
        if not isinstance(optimizer, torch.optim.Optimizer):
            optimizer = optimizer.optimizer
        used = [group for group in optimizer.param_groups if group.get("name") != UNUSED]
        self.groups = group_sizes(used)  # before expert ranks divide them, and ZeRO puts flat pieces into them
        if experts is not None:
            experts.prepare(module, optimizer)
        chosen = transformed_parameters(optimizer.param_groups)
        names = {id(each): name for name, each in self.named_parameters()}
        self.members = [
            [names[id(each)] for each in group["params"] if id(each) in names] for group in optimizer.param_groups
        ]
        self.base_rates = [float(group["lr"]) for group in optimizer.param_groups]
        self.current_rate = self.rate = float(optimizer.defaults.get("lr", self.base_rates[0]))
        with redirect_prints(), keep_precision(module.model, plan.dtype):
            if plan.own_masters:
                own: dict[str, Any] = {"clip_norm": plan.clip_norm, "rank": process.rank, "ranks": process.world}
                own["whole"] = plan.zero_stage == 0
                self._engine = Bf16Engine(module, optimizer, **own)  # type: ignore[arg-type]
            else:
                self._engine, _, _, _ = deepspeed.initialize(
                    model=module, optimizer=optimizer, config=settings, dist_init_required=False
                )
        if plan.trains_weights and process.world == 1:
            # Alone there is nothing to reduce, and DeepSpeed would still copy all gradients into a flat buffer and back.
            self._engine.enable_backward_allreduce = False
        if plan.zero_stage == 3:
            gather_around_loss(deepspeed, module.loss_head, self.zero_optimizer)
        if hasattr(self._engine.optimizer, "unscale_and_clip_grads"):
            settle_norm(self._engine.optimizer)
        self.directions = None if transform is None else PreconditionedGradients(self, transform, chosen)

    @property
    def objective(self) -> Any:
        """The objective of the run, which counts and collates."""
        return self.module.loss_head.objective

    def set_rate(self, factor: float) -> float:
        """Set every group to ``factor`` times its base rate; returns that of groups without a rate of their own."""
        for group, base in zip(self._engine.optimizer.param_groups, self.base_rates, strict=True):
            group["lr"] = base * factor
        self.current_rate = self.rate * factor
        return self.current_rate

    # ------------------------------------------------------------------------------------------------------- training

    def train_step(
        self,
        window: Sequence[Batch],
        stop: Callable[[], float] = lambda: False,
        before_update: Callable[[], object] = lambda: None,
    ) -> StepResult:
        """One optimizer step over this rank's micro-batches; every rank brings equally many.

        A loss or gradient that is not finite leaves parameters and moments as they were. What ``stop`` says after the last backward
        travels with the sums, so that all ranks hear of it in the same step. ``before_update`` is called once all gradients are there.
        """
        size = self._size(window)
        window, scales = list(self._couple(window)), self._scales(size)
        self.repeat = make_repetition(self, self.module, self.transfer, window, scales)
        with self.block_figures.sums.collecting():
            sums = self._accumulate(window, scales)
        before_update()
        wish = torch.full((1,), float(stop()), device=sums.device)
        return self._update(all_reduce(torch.cat([sums, self._block_pairs(sums), wish])), size)

    def _accumulate(self, window: Sequence[Batch], scales: Sequence[float]) -> Tensor:
        """Run all micro-batches forward and backward, and return the sums of their outputs."""
        sums: Tensor | None = None
        for index, batch in enumerate(self.transfer.copy_ahead(window)):
            last = index == len(window) - 1
            self._engine.set_gradient_accumulation_boundary(last)
            outputs = self._engine(batch)
            self._engine.backward(weighted_loss(outputs, scales), scale_wrt_gas=False)
            detached = torch.stack([output.detach().float() for output in outputs])
            sums = detached if sums is None else sums + detached
            if not last:
                self._engine.step()
        assert sums is not None, "an optimizer step needs at least one micro-batch on every rank"
        return sums

    def _block_pairs(self, sums: Tensor) -> Tensor:
        """Return sum and count of what blocks report, behind those of the objective."""
        terms, metrics = self._reported()
        return self.block_figures.pairs(sums, (*terms, *metrics), self.sharing)

    def _couple(self, batches: Iterable[Batch]) -> Iterable[Batch]:
        """Give documents what follows from all of these on all ranks, where the objective has such values. Collective."""
        return couple(self.objective, batches, self.read, partial(share_documents, self.plan, self.process))

    def _scales(self, size: StepSize) -> list[float]:
        """W/N of the loss and of its further terms. Terms that a layer adds by itself are sums over tokens without weights, and are
        told W over these; in fp16 their gradients do not pass the scaler."""
        ranks = self.plan.sharing_ranks
        scaler = self.zero_optimizer.loss_scaler.cur_scale if self.plan.scales_loss else 1.0
        self.module.model.loss_factor.value = mean_of(ranks, size.tokens) * scaler
        return [mean_of(ranks, each) for each in (size.weight, *size.terms.values())]

    def _size(self, window: Sequence[Batch], *, counted: bool = True) -> StepSize:
        """Add up the size of a step over all micro-batches, and over the ranks that are ``counted``. Collective."""
        return measure_size(self.objective, window, self.process, counted=counted)

    def _update(self, sums: Tensor, size: StepSize) -> StepResult:
        if self.plan.trains_weights:
            return self._update_whole(sums, size)
        if self.directions is not None:
            self.directions.clip_and_take()
        self._engine.step()
        norm = self._norm()
        values = torch.cat([sums, torch.as_tensor(norm, dtype=torch.float32, device=sums.device).reshape(1)]).tolist()
        return self._result_of_zero(values, size)

    def _result_of_zero(self, values: list[float], size: StepSize) -> StepResult:
        """Return the result of a step in which DeepSpeed decides whether there is an update."""
        applied = bool(self._engine.was_step_applied())
        if not applied and math.isfinite(values[-1]):
            values[-1] = math.nan  # DeepSpeed reports an overflow as a norm of -1 or 0
        return self._result(values, size, applied=applied)

    def _norm(self) -> Any:
        """Return the norm of the last step's gradients, before they were clipped. DeepSpeed's own may be that of directions."""
        return self._engine.get_global_grad_norm() if self.directions is None else self.directions.norm

    def _update_whole(self, sums: Tensor, size: StepSize) -> StepResult:
        """Stage 0 has neither norm nor finite check of its own: both come here, before the update."""
        gradients = [parameter.grad for parameter in self.module.parameters() if parameter.grad is not None]
        if self.experts is not None:
            norm = self.experts.whole_norm(self.module.parameters())
        else:
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))).float()
        values = torch.cat([sums, norm.reshape(1)]).tolist()
        if not (math.isfinite(values[0]) and math.isfinite(values[-1])):
            self._engine.zero_grad()
            return self._result(values, size, applied=False)
        clip = self.plan.clip_norm
        if clip and values[-1] > clip:
            torch._foreach_mul_(gradients, clip / (values[-1] + 1e-6))
        del gradients
        if self.directions is not None:
            self.directions.take()
        self._engine.step()
        return self._result(values, size, applied=True)

    def _result(self, values: list[float], size: StepSize, *, applied: bool) -> StepResult:
        """``values``: loss sum, token count, the pairs of terms, metrics and blocks' figures, the wishes to stop, and the norm."""
        terms, metrics = self._reported()
        further, figures = mean_figures(
            values[2:-2], terms, (*metrics, *(self.block_figures.names or ())), weight=size.weight
        )
        return StepResult(
            loss=mean_of(values[0], size.weight) + further,
            grad_norm=values[-1],
            tokens=size.tokens,
            applied=applied,
            metrics=figures,
            stop=values[-2] >= 1,
            save=values[-2] > 0,
        )

    def _reported(self) -> tuple[Sequence[str], Sequence[str]]:
        """Names of further terms and of metrics."""
        return self.module.loss_head.term_names, self.module.loss_head.metric_names

    # ----------------------------------------------------------------------------------------------------- evaluation

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Batch], stop: Callable[[], bool] = lambda: False) -> dict[str, float] | None:
        """Loss in nats per trained token (and the objective's metrics) over all batches of all ranks; see ``sums_of``."""
        with self.use_averaged_weights():
            sums = self.sums_of(batches, stop)
        return None if sums is None else self.figures_of(sums)

    @torch.no_grad()
    def sums_of(self, batches: Iterable[Batch], stop: Callable[[], bool]) -> Tensor | None:
        """Return sums for ``figures_of``, over all batches of all ranks. Those of several calls may be added up.

        Every rank brings equally many batches. ``None`` when some rank wanted to stop before the end.
        """
        batches = self._couple(batches)
        self._engine.eval()
        sums: Tensor | None = None
        for batch in self.transfer.copy_ahead(batches):
            if not agree(not stop()):
                self._engine.train()
                return None
            outputs = torch.stack([output.double() for output in self._engine(batch)])
            sums = outputs if sums is None else sums + outputs
        self._engine.train()
        assert sums is not None, "an evaluation needs at least one batch on every rank"
        return all_reduce(sums)

    @torch.no_grad()
    def read(self, batches: Sequence[Batch], reader: Reader, *cache: KVCache) -> None:
        """Run batches as an evaluation does, and show ``reader`` what the head gets, on the ranks that have the head.

        Every rank brings equally many. A ``cache`` is that of the model; a pipeline takes none.
        """
        self._engine.eval()
        self.module.loss_head.reader = reader
        try:
            self._run(batches, *cache)
        finally:
            self.module.loss_head.reader = None
            self._engine.train()

    def _run(self, batches: Sequence[Batch], *cache: KVCache) -> None:
        for batch in self.transfer.copy_ahead(batches):
            self._engine(batch, *cache)

    def figures_of(self, sums: Tensor) -> dict[str, float]:
        """Return the figures of an evaluation that has added up to these."""
        values = sums.tolist()
        further, figures = mean_figures(values[2:], *self._reported(), weight=values[1])
        named = {f"eval_{name}": value for name, value in figures.items()}
        return {"eval_loss": mean_of(values[0], values[1]) + further, **named}

    # ---------------------------------------------------------------------------------------------------------- layout

    @property
    def sharing(self) -> Any:
        """The process group of the ranks that share parameters; ``None`` is that of all."""
        return None

    def close(self) -> None:
        """Give the memory back, once nobody refers to this engine either: hooks and a cache of DeepSpeed's would keep all of it."""
        with redirect_prints():
            self._engine.destroy()
        if self.plan.zero_stage == 3:
            forget_modules()

    @property
    def stages(self) -> tuple[str, ...]:
        """Describe each stage of a pipeline, for people; empty without one."""
        return ()
