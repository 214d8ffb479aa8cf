"""Steps that are computed again: what a machine gives for the same weights, rows and random numbers has to be equal to the bit."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from math import isfinite
from statistics import median
from typing import TYPE_CHECKING, Any

from mt_core import CallbackContext, UsageError

from .ranks import device_of, gather_rows

if TYPE_CHECKING:
    from torch import Tensor

WINDOW, FEWEST = 32, 8
"""Norms that are usual are the last so many, and known after so many (optimizer steps)."""


class Repetition:
    """A step that this process computes again: measures of other callbacks leave it out, whichever of them is called first.

    A backward runs hooks in threads of its own, so no variable of a thread or context can tell.
    """

    is_running = False


class GradientRecord:
    """Hash and norm of the gradients that this rank's own backward has given its weights, before ranks add them up.

    The hash does not depend on the order in which gradients come.
    """

    def __init__(self, model: Any) -> None:
        import torch

        device = device_of(model)
        self.hash = torch.zeros((), dtype=torch.int64, device=device)
        self.squares = torch.zeros((), dtype=torch.float64, device=device)
        trained = [each for each in model.parameters() if each.requires_grad]
        for number, parameter in enumerate(trained):
            parameter.register_hook(self._adder(number))

    def _adder(self, number: int) -> Any:
        from .corruption import hash_weights

        factor = 2 * (number * 0x9E3779B97F4A7C15 % 2**62) + 1  # odd, so that nothing is lost; another one for each

        def add(gradient: Tensor) -> None:
            given = gradient.detach().contiguous()
            self.hash += hash_weights([given]) * factor
            self.squares += given.float().square().sum()

        return add

    def clear(self) -> None:
        """Forget what has come so far."""
        self.hash.zero_()
        self.squares.zero_()


class RepeatedSteps:
    """Computes a step again where something is suspicious, and finds the ranks that do not give the same gradients, bit for bit.

    The first step of a process is computed again as well: where most ranks give others then, kernels add in any order, and nothing can
    be told from it.
    """

    def __init__(self, model: Any, ratio: float) -> None:
        self._record, self._ratio = GradientRecord(model), ratio
        self._norms: deque[float] = deque(maxlen=WINDOW)
        self._is_known = False
        self.is_exact = True
        """Whether a step that is computed again gives the same bits here."""

    def begin(self) -> None:
        """Expect the gradients of a step."""
        self._record.clear()

    def jumps(self, context: CallbackContext) -> dict[int, float]:
        """Return the ranks whose norm is above what is usual for them, with how many times their median it is. Collective."""
        import torch
        import torch.distributed as dist

        norm = float(self._record.squares.sqrt())
        above = above_usual(norm, self._norms, self._ratio)
        if not isfinite(norm) and context.config["train"]["dtype"] == "fp16":
            above = 0.0  # a loss scale is found by gradients that overflow, and such a step is skipped
        if isfinite(norm):
            self._norms.append(norm)
        assert context.weights is not None, "a run has weights"
        rank, world = context.weights.rank, context.weights.world
        here = torch.tensor([above], dtype=torch.float64, device=self._record.squares.device)
        most = here.clone()
        if world > 1:
            dist.all_reduce(most, op=dist.ReduceOp.MAX)
        if not float(most):
            return {}
        every = gather_rows(here, rank, world).flatten().tolist() if world > 1 else [above]
        return {rank: each for rank, each in enumerate(every) if each}

    def repeat(self, context: CallbackContext, *, is_suspicious: bool) -> list[int] | None:
        """Compute the step again; return the ranks whose gradients differ, and ``None`` where there was no reason to. Collective.

        Raises ``UsageError`` for a run whose steps cannot be computed again.
        """
        import torch

        if not self.is_exact or (self._is_known and not is_suspicious):
            return None
        if context.repeat is None:
            raise UsageError(
                "callback corruption-check: repeat computes a step again before its update, which optimizers that update in the backward"
                " (lomo and its kin) leave no time for; leave repeat out, or take another optimizer"
            )
        assert context.weights is not None, "a run has weights"
        before = self._record.hash.clone()
        self._record.clear()
        Repetition.is_running = True
        try:
            context.repeat()
        finally:
            Repetition.is_running = False
        differs = (self._record.hash != before).to(torch.float64).reshape(1)
        world = context.weights.world
        every = gather_rows(differs, context.weights.rank, world).flatten() if world > 1 else differs
        odd = [rank for rank, each in enumerate(every.tolist()) if each]
        is_first, self._is_known = not self._is_known, True
        self.is_exact = not (is_first and 2 * len(odd) > world)
        return odd


def above_usual(norm: float, norms: Collection[float], ratio: float) -> float:
    """Return how many times the median of those before a norm is where it is above ``ratio``, infinite for no number; else 0."""
    if not isfinite(norm):
        return float("inf")
    usual = median(norms) if len(norms) >= FEWEST else float("inf")
    times = norm / usual if usual else 0.0
    return times if times > ratio else 0.0
