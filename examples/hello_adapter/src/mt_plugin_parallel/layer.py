"""W x + scale · B relu(A x). Shapes: E inputs, F outputs, R inner units, with any dimensions before them."""

from __future__ import annotations

from torch import Generator, Tensor, nn
from torch.nn.functional import linear, relu

from mt_core.adapters import LinearAdapter, Place, uniform
from mt_core.nn import AdaptedLinear

from .plugin import ParallelConfig


class ParallelLinear(AdaptedLinear):
    """Stands for a projection, whose weight it has under its own name, and brings A and B along."""

    def __init__(self, base: nn.Module, config: ParallelConfig) -> None:
        super().__init__(base)
        self.scale = config.scale
        self.down = self.new_parameter(config.width, self.in_features)  # shapes only: memory may not be there yet
        self.up = self.new_parameter(self.out_features, config.width)

    def initialise(self, generator: Generator) -> None:
        """B is zero, so that the first output is the base's."""
        self.down.data.copy_(uniform(self.down, generator))
        self.up.data.zero_()

    def adapted_output(self, x: Tensor) -> Tensor:
        """(…, E) -> (…, F)."""
        return self.base_output(x) + self.scale * linear(relu(linear(x, self.down)), self.up)


class Parallel(LinearAdapter[ParallelConfig]):
    """Puts the layer in the place of every target, and trains what it has brought."""

    def layer(self, base: nn.Module, place: Place) -> ParallelLinear:
        """See ``LinearAdapter``."""
        return ParallelLinear(base, self.config)
