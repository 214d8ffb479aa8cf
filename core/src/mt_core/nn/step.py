"""Sums over the blocks of a model in one optimizer step: figures of its record, and tensors for ``TrainModel.after_step``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

from torch import Tensor

from mt_core.errors import ComponentError

StepFigures = Callable[[Tensor], Mapping[str, Tensor]]
"""Makes figures of what blocks have gathered in a whole step: the sum → name → a scalar."""


class StepSums:
    """Sums of what the blocks of a model report and gather in one optimizer step on this rank, in fp64 on the device.

    Only an engine that trains ``collects``: evaluation and generation add nothing. Nor does the forward that repeats a recomputed
    block, though a block does not see that: what it computes must be what it computed the first time.
    """

    def __init__(self) -> None:
        self.figures: dict[str, tuple[Tensor, Tensor | float]] = {}
        self.gathered: dict[str, Tensor] = {}
        self.figures_of: dict[str, StepFigures] = {}
        self.collects = False
        self._repeats = False

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Begin a step; what comes in between is added up."""
        self.figures, self.gathered, self.figures_of, self.collects = {}, {}, {}, True
        try:
            yield
        finally:
            self.collects = False

    @contextmanager
    def repeating(self) -> Iterator[None]:
        """Add nothing up inside."""
        self._repeats = True
        try:
            yield
        finally:
            self._repeats = False

    def around_recompute(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Return the contexts of ``torch.utils.checkpoint`` (its ``context_fn``): of the forward, and of the one that repeats it."""
        return nullcontext(), self.repeating()

    def report(self, name: str, total: Tensor, count: Tensor | float) -> None:
        """Add to a figure while blocks run (``BlockContext.report``), unless they repeat a forward."""
        if not self._repeats and self.collects:
            self.add(name, total, count)

    def add(self, name: str, total: Tensor, count: Tensor | float) -> None:
        """Add to a figure, whether blocks run now or have run. Raises ``ComponentError`` for what is no scalar."""
        if total.dim() or (isinstance(count, Tensor) and count.dim()):
            shape = tuple(total.shape) or tuple(getattr(count, "shape", ()))
            raise ComponentError(
                f"a block reports {name!r} with a value of shape {shape}; a figure is a scalar sum over a scalar count, and"
                " context.gather(name, values) adds up tensors"
            )
        total = total.detach().double()
        count = count.detach().double() if isinstance(count, Tensor) else float(count)
        if name in self.figures:
            total, count = self.figures[name][0] + total, self.figures[name][1] + count
        self.figures[name] = total, count

    def gather(self, name: str, values: Tensor, figures: StepFigures | None = None) -> None:
        """Add to a tensor while blocks run (``BlockContext.gather``), unless they repeat a forward."""
        if self._repeats or not self.collects:
            return
        before, values = self.gathered.get(name), values.detach().double()
        if before is not None and before.shape != values.shape:
            raise ComponentError(
                f"blocks gather {name!r} with the shapes {tuple(before.shape)} and {tuple(values.shape)}; give each layer a name"
                " of its own, or all of them one shape"
            )
        self.gathered[name] = values if before is None else before + values
        if figures is not None:
            self.figures_of[name] = figures
