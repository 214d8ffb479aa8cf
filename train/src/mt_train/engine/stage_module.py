"""The layers of a stage as DeepSpeed's ``PipelineModule`` runs them. Imported once DeepSpeed may be: see ``processes``.

Hidden states are all that travels between stages: every stage reads the same batches itself, as the loader gives them.

Shapes: B rows, T tokens, D model width.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.pipe import PipelineModule
from torch import Tensor, nn

from mt_core.nn import Batch, BlockContext, TrainModel, run_recomputed
from mt_core.nn.media import add_levels
from mt_train.engine.processes import make_own_groups_alone
from mt_train.engine.stages import Stage
from mt_train.engine.step import LossHead, weighted_loss


class Feed:
    """The micro-batches of a step on this stage, which sees them in order, and what its loss came to."""

    def __init__(self, model: TrainModel, device: torch.device) -> None:
        self.model = model
        self._device = device
        self._waiting: Iterator[Batch] = iter(())
        self._batch: Batch | None = None
        self._context: BlockContext | None = None
        self.scales: Sequence[float] = (1.0,)
        self.sums: Tensor | None = None

    def fill(self, batches: Sequence[Batch], scales: Sequence[float] = (1.0,)) -> Iterator[tuple[Tensor, tuple[()]]]:
        """Begin a step, whose loss and further terms are multiplied by ``scales``; returns what DeepSpeed reads: inputs, and no labels."""
        self._waiting, self.scales, self.sums = iter(batches), scales, None
        return iter([(batch.input_ids, ()) for batch in batches])

    def advance(self) -> None:
        """Go on to the next micro-batch."""
        self._batch = batch = next(self._waiting).to(self._device)
        self._context = self.model.context_of(batch)

    @property
    def batch(self) -> Batch:
        """The present micro-batch."""
        assert self._batch is not None, "DeepSpeed runs a forward only in a step"
        return self._batch

    @property
    def context(self) -> BlockContext:
        """The context of its blocks."""
        assert self._context is not None, "DeepSpeed runs a forward only in a step"
        return self._context

    def add(self, outputs: Sequence[Tensor]) -> None:
        """Count the sums of one micro-batch."""
        values = torch.stack([output.detach().double() for output in outputs])
        self.sums = values if self.sums is None else self.sums + values


class StageModule(PipelineModule):  # type: ignore[misc]
    """A ``PipelineModule`` whose layers, partition and shared weights are those of ``Stage``."""

    def __init__(self, stage: Stage, loss_head: LossHead, device: torch.device) -> None:
        feed = Feed(stage.model, device)
        layers: list[Any] = [None] * stage.bounds[-1]
        for number in stage.layers:
            layers[number] = _wrap(stage, number, loss_head, feed)
        self._bounds = list(stage.bounds)
        with contextlib.redirect_stdout(io.StringIO()), make_own_groups_alone():
            super().__init__(layers, num_stages=len(stage.bounds) - 1, dynamic_shape=True)
        # Beside torch's registry: parts of other stages are on the meta device, and DeepSpeed must not see them.
        self.__dict__ |= {"stage": stage, "feed": feed, "model": stage.model, "loss_head": loss_head}
        self._shared = self._share(stage)

    def forward(self, inputs: Tensor) -> Tensor:
        """(B, T) ids on the first stage, (B, T, D) on the others -> (B, T, D), and a scalar on the last."""
        self.feed.advance()
        return super().forward(inputs)  # type: ignore[no-any-return]

    def _partition_layers(self, method: str = "") -> None:
        self.parts = self._bounds
        self._set_bounds(self.parts[self.stage_id], self.parts[self.stage_id + 1])

    def _share(self, stage: Stage) -> list[tuple[nn.Parameter, Any]]:
        """Parameters that other stages have too, each with the group of ranks that add up its gradient. Collective.

        Any parameter may be shared, while DeepSpeed knows shared layers only. The first stage that has it counts it.
        """
        parameters = dict(stage.model.named_parameters())
        found = []
        for name, stages in stage.shared_parameters().items():
            for data in range(self._grid.data_parallel_size):
                ranks = [self._grid.stage_to_global(stage_id=each, data=data) for each in stages]
                if self.global_rank in ranks:  # each rank makes its own groups alone
                    group = dist.new_group(ranks, use_local_synchronization=True)
                    parameters[name].ds_pipe_replicated = stage.index != stages[0]  # type: ignore[attr-defined]
                    found.append((parameters[name], group))
        return found

    def get_tied_weights_and_groups(self) -> list[tuple[nn.Parameter, Any]]:
        """See ``_share``."""
        return self._shared


def _wrap(stage: Stage, number: int, loss_head: LossHead, feed: Feed) -> nn.Module:
    last = stage.bounds[-1] - 1
    if number == last:
        return Head(loss_head, feed)
    module = stage.model.layers()[number].module
    if number == 0:
        return Embed(module, feed)
    return Norm(module) if number == last - 1 else Block(module, number - 1, feed)


class Embed(nn.Module):
    """The first layer: the embedding, and what encodes media."""

    def __init__(self, module: nn.Module, feed: Feed) -> None:
        super().__init__()
        self.module = module
        self.media = feed.model.media  # the model itself must not be seen: other stages have the rest of it
        self._feed = feed

    def forward(self, input_ids_BT: Tensor) -> Tensor:
        """(B, T) -> (B, T, D), which needs a gradient also where the embedding is frozen: the stages expect one."""
        hidden_BTD = self._feed.model.embed_batch(self._feed.batch, self._feed.context)
        if torch.is_grad_enabled() and not hidden_BTD.requires_grad:
            hidden_BTD.requires_grad_(True)
        return hidden_BTD.contiguous()


class Block(nn.Module):
    """A block, recomputed in the backward where the run says so, and what projectors add behind it."""

    def __init__(self, module: nn.Module, index: int, feed: Feed) -> None:
        super().__init__()
        self.module, self.index = module, index
        self._feed = feed

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        context = self._feed.context
        if self._feed.model.checkpoint_blocks and self.training and torch.is_grad_enabled():
            hidden_BTD = run_recomputed(self.module, hidden_BTD, context)
        else:
            hidden_BTD = self.module(hidden_BTD, context)
        return add_levels(hidden_BTD, self.index, context.levels).contiguous()  # what is sent must lie in order


class Norm(nn.Module):
    """The norm before the head."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.module(hidden_BTD).contiguous()  # type: ignore[no-any-return]


class Head(nn.Module):
    """Head and loss."""

    def __init__(self, loss_head: LossHead, feed: Feed) -> None:
        super().__init__()
        self.loss_head = loss_head
        self._feed = feed

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """(B, T, D) -> the loss, whose backward DeepSpeed runs."""
        outputs = self.loss_head(hidden_BTD, self._feed.batch)
        self._feed.add(outputs)
        return weighted_loss(outputs, self._feed.scales)
