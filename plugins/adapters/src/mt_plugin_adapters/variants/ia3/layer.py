"""Gains of a linear layer's outputs, or of its inputs. Shapes: E inputs, F outputs."""

from __future__ import annotations

from torch import Generator, Tensor, nn

from mt_core.adapters import LinearAdapter, Place, names, require_named
from mt_core.nn import AdaptedLinear

from .config import Ia3Config


class Ia3Linear(AdaptedLinear):
    """``ia3_l`` is (E) with ``of_inputs``, else (F), and then of the bias too, as in peft."""

    def __init__(self, base: nn.Module, *, of_inputs: bool) -> None:
        super().__init__(base)
        self.of_inputs = of_inputs
        self.ia3_l = self.own(self.in_features if of_inputs else self.out_features)

    def initialise(self, generator: Generator) -> None:
        """All 1: the first output is that of the base."""
        self.ia3_l.data.fill_(1.0)

    def adapted(self, x: Tensor) -> Tensor:
        """(…, E) -> (…, F)."""
        gain = self.ia3_l.to(x.dtype)
        return self.base_output(x * gain) if self.of_inputs else self.base_output(x) * gain

    def merged_weight(self) -> Tensor:
        """The weight with its columns or rows multiplied."""
        gain = self.ia3_l.float()
        return self.base_weight() * (gain if self.of_inputs else gain[:, None])

    def merged_bias(self) -> Tensor | None:
        """The bias, multiplied where the outputs are."""
        return self.bias if self.bias is None or self.of_inputs else self.bias * self.ia3_l


class Ia3(LinearAdapter[Ia3Config]):
    """Trains the gains."""

    def layer(self, base: nn.Module, place: Place) -> Ia3Linear:
        """See ``LinearAdapter``. Raises ``UsageError`` for a pattern of ``feedforward`` that names no target."""
        require_named("adapter.feedforward", self.config.feedforward or (), place.targets)
        patterns = ("down_proj",) if self.config.feedforward is None else self.config.feedforward
        return Ia3Linear(base, of_inputs=any(names(place.name, each) for each in patterns))
