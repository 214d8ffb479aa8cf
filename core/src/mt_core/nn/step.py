"""One optimizer step as a model sees it: what its blocks add up on the way, and what is at hand after the update."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal, Protocol

from torch import Tensor, nn

from mt_core.errors import ComponentError

Part = Literal["weight", "gradient"] | str
"""What of a parameter is meant: its value in fp32, its gradient, or a key of the optimizer's state (``exp_avg``)."""


class AdapterContext(Protocol):
    """The parameters of a running engine, whole, wherever it keeps them. Every call is collective over the ranks that have
    the parameter, so that all of them make the same calls in the same order."""

    @property
    def step(self) -> int:
        """Optimizer steps that are done, this one included (from 1)."""
        ...

    @property
    def total_steps(self) -> int:
        """Return the number of steps of the run."""
        ...

    @property
    def rate(self) -> float:
        """Learning rate of this step: that of groups without one of their own."""
        ...

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        """The modules that own parameters of the adapter, by name; in a pipeline those of this stage."""
        ...

    def read(self, name: str, part: Part = "weight") -> Tensor:
        """A copy, whole, in fp32 (a frozen weight: in its own dtype). A parameter that several layers share is there under the name
        that it has in each of them. Raises ``ComponentError`` for what is not there."""
        ...

    def moments(self, name: str) -> tuple[str, ...]:
        """Keys of the optimizer's state that have a number for each one of this weight; none before its first update."""
        ...

    def total(self, value: Tensor) -> Tensor:
        """Add up over all ranks what a layer gathered from gradients in its own backward: as large as if it were a parameter's gradient."""
        ...

    def step_sum(self, name: str) -> Tensor:
        """What blocks have gathered under this name in the step (``BlockContext.gather``), added up over all micro-batches and all
        ranks that share the block, in fp64. Raises ``ComponentError`` where none did."""
        ...

    def write(self, name: str, value: Tensor, part: Part = "weight") -> None:
        """Put a whole value. A trained weight's master and what the model computes with both change.

        Raises ``ComponentError`` for what is not there, or of another shape.
        """
        ...


class StepSums:
    """What the blocks of a model add up in one optimizer step on this rank, in fp64 on the device.

    Only an engine that trains ``collects``: evaluation and generation add nothing. Nor does the forward that repeats a recomputed
    block, though a block does not see that: what it computes must be what it computed the first time.
    """

    def __init__(self) -> None:
        self.figures: dict[str, tuple[Tensor, Tensor | float]] = {}
        self.gathered: dict[str, Tensor] = {}
        self.collects = False
        self._repeats = False

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Begin a step; what comes in between is added up."""
        self.figures, self.gathered, self.collects = {}, {}, True
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
        """What ``torch.utils.checkpoint`` takes as ``context_fn``: around the forward, and around the one that repeats it."""
        return nullcontext(), self.repeating()

    def report(self, name: str, total: Tensor, count: Tensor | float) -> None:
        """See ``BlockContext``."""
        if self._repeats or not self.collects:
            return
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

    def gather(self, name: str, values: Tensor) -> None:
        """See ``BlockContext``."""
        if self._repeats or not self.collects:
            return
        before, values = self.gathered.get(name), values.detach().double()
        if before is not None and before.shape != values.shape:
            raise ComponentError(
                f"blocks gather {name!r} with the shapes {tuple(before.shape)} and {tuple(values.shape)}; give each layer a name"
                " of its own, or all of them one shape"
            )
        self.gathered[name] = values if before is None else before + values
