"""Going back when the loss jumps, as PaLM's training did (https://arxiv.org/abs/2204.02311, section 5.1)."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from pydantic import Field

from mt_core import CallbackContext, Control, MtConfig, MtError

if TYPE_CHECKING:
    from torch import Tensor


class SpikeRollbackConfig(MtConfig):
    """Definition of a spike, and how far the run goes back.

    Where one of the losses before is not above zero, as a policy's, zero says nothing of their size: a spike is then above their median
    by more than ``ratio - 1`` times its size, and by more than ``ratio`` times their range. A loss that is NaN or infinite is a spike.
    """

    ratio: float = Field(
        2.0, gt=1, description="a loss is a spike when it is more than so many times the median of those before"
    )
    window: int = Field(32, gt=0, description="losses that the median is taken of (optimizer steps)")
    patience: int = Field(8, gt=0, description="losses that are needed before one can be a spike (optimizer steps)")
    every_steps: int = Field(10, gt=0, description="optimizer steps between the states that the run can go back to")
    most: int = Field(10, gt=0, description="times that the run goes back before it ends with an error")


def spike_limits(config: SpikeRollbackConfig) -> dict[str, str]:
    """Return what a run cannot have beside it."""
    return {"background": "its copies are taken at checkpoints of the moment that they are announced in"}


class SpikeRollback:
    """Keeps a copy of weights and optimizer state in memory, and puts it back after a spike.

    The steps since then count as done, and their rows are not read again: neither the schedule nor the length of the run
    changes. Copies are also taken at each checkpoint, so that a resumed run has the same one.
    """

    def __init__(self, config: SpikeRollbackConfig) -> None:
        self._config = config
        self._losses: list[float] = []
        self._times = 0
        self._kept: tuple[int, list[tuple[str, int, Tensor]], list[dict[str, Any]]] | None = None

    def on_run_start(self, context: CallbackContext) -> None:
        """Note what a resumed run can go back to."""
        if context.step:
            self._keep(context)

    def on_step_end(self, context: CallbackContext) -> Control | None:
        """Look at the loss; it is the same on all ranks."""
        assert context.record is not None, "a step that has ended has a record"
        loss, options = context.record.loss, self._config
        before = self._losses[-options.window :]
        if len(self._losses) >= options.patience and not loss <= highest_usual(before, options.ratio):
            return self._go_back(context, loss, median(before))
        if math.isfinite(loss):  # another says nothing of what is usual
            self._losses = [*self._losses, loss][-max(options.window, options.patience) :]
        if context.step % self._config.every_steps == 0 or self._kept is None:
            self._keep(context)
        return None

    def on_checkpoint_saved(self, context: CallbackContext) -> None:
        """Note what a resumed run starts from."""
        self._keep(context)

    def state_dict(self) -> dict[str, Any]:
        """The losses before, and how often the run went back."""
        return {"losses": self._losses, "times": self._times}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on watching."""
        self._losses, self._times = list(state["losses"]), state["times"]

    def _keep(self, context: CallbackContext) -> None:
        assert context.weights is not None, "a run has weights"
        slices = [(name, start, values.clone()) for name, start, values in context.weights.slices()]
        states = [{key: _copy(value) for key, value in state.items()} for state in context.weights.states()]
        self._kept = context.step, slices, states

    def _go_back(self, context: CallbackContext, loss: float, usual: float) -> Control:
        assert context.weights is not None, "a run has weights"
        assert self._kept is not None, "the first loss, which is no spike, comes with a copy"
        step, slices, states = self._kept
        if step == context.step:  # stopped before the evaluation of this step, so that its end comes after the resume
            return Control(
                say=f"step {step}: loss {loss:.4f} is a spike (median {usual:.4f}), and its weights are in the checkpoint that this run"
                f" goes on from, since it was stopped before it could go back; to leave the step out, resume from a checkpoint before it"
            )
        self._times += 1
        if self._times > self._config.most:
            raise MtError(
                f"step {context.step}: loss {loss:.4f} is spike number {self._times} (median {usual:.4f}); lower the learning rate,"
                " or look at the rows"
            )
        context.weights.put(slices)
        for place, live in enumerate(context.weights.states()):
            _put_back(live, states[place] if place < len(states) else {})
        return Control(
            say=f"step {context.step}: loss {loss:.4f} is a spike (median {usual:.4f}); weights and optimizer state are those of"
            f" step {step} again, and the rows since then are passed over"
        )


def highest_usual(losses: Sequence[float], ratio: float) -> float:
    """Return the largest loss that is no spike after these, which are finite; ``SpikeRollbackConfig`` says why."""
    usual, least = median(losses), min(losses)
    if least > 0:
        return ratio * usual
    above = max((ratio - 1) * abs(usual), ratio * (max(losses) - least))
    return usual + above if above else sys.float_info.max  # all are zero, and nothing says what is far from it


def _put_back(live: dict[str, Any], kept: Mapping[str, Any]) -> None:
    """The state of one parameter: in place where a tensor is still there, since DeepSpeed has views of it. What has come since then
    goes (blocks that take turns, an optimizer's first update): an optimizer makes it anew."""
    for key in live.keys() - kept.keys():
        del live[key]
    for key, value in kept.items():
        if hasattr(value, "copy_") and key in live and live[key].shape == value.shape:
            live[key].copy_(value)
        else:
            live[key] = _copy(value)


def _copy(value: Any) -> Any:
    """Copy a tensor; numbers, of which some optimizers make their state as well, are values."""
    return value.clone() if hasattr(value, "clone") else value
