"""The parameters of a running engine, as adapters and models are given them around an update. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn

Part = Literal["weight", "gradient"] | str
"""A part of a parameter: its value in fp32, its gradient, or a key of the optimizer's state (``exp_avg``)."""


class AdapterContext(Protocol):
    """The parameters of a running engine, whole, wherever it keeps them. Every call is collective over the ranks that have
    the parameter, so that all of them make the same calls in the same order."""

    @property
    def step(self) -> int:
        """Return the number of finished optimizer steps, including this one (from 1)."""
        ...

    @property
    def total_steps(self) -> int:
        """Return the number of steps of the run."""
        ...

    @property
    def rate(self) -> float:
        """Return the learning rate of this step, for groups without a rate of their own."""
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
        """Return the sum of what blocks have gathered under this name in the step (``BlockContext.gather``), over all micro-batches and all
        ranks that share the block, in fp64: a copy. It is complete after the update. Raises ``ComponentError`` where none did."""
        ...

    def write(self, name: str, value: Tensor, part: Part = "weight") -> None:
        """Put a whole value. A trained weight's master and what the model computes with both change.

        Raises ``ComponentError`` for what is not there, or of another shape.
        """
        ...
