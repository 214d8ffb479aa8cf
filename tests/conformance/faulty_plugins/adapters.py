"""Adapters with one fault each. Shapes: E inputs, F outputs, R rank."""

from __future__ import annotations

from torch import Generator, Tensor, nn
from torch.nn.functional import dropout, softmax

from mt_core import AdapterContext, LowRankConfig
from mt_core.adapters import LinearAdapter, LoraLinear, Place
from mt_core.errors import UsageError
from mt_core.nn import TrainModel


class Honest(LinearAdapter[LowRankConfig]):
    """LoRA with this layer."""

    kind: type[LoraLinear] = LoraLinear

    def layer(self, base: nn.Module, place: Place) -> LoraLinear:
        return self.kind.of(base, place, self.config)


class HastyLinear(LoraLinear):
    def initialise(self, generator: Generator) -> None:
        super().initialise(generator)
        self.lora_B.data.fill_(0.1)


class Hasty(Honest):
    kind = HastyLinear


class MoodyLinear(LoraLinear):
    def initialise(self, generator: Generator) -> None:
        super().initialise(generator)
        self.lora_A.data.normal_()


class Moody(Honest):
    kind = MoodyLinear


class Greedy(Honest):
    """It moves weights of the base, and does not say so."""

    def after_step(self, context: AdapterContext) -> None:
        for name, module in context.modules():
            if isinstance(module, LoraLinear):
                context.write(f"{name}.weight", 1.01 * context.read(f"{name}.weight"))


class IdleLinear(LoraLinear):
    def __init__(self, base: nn.Module, **options: object) -> None:
        super().__init__(base, **options)  # type: ignore[arg-type]
        self.spare = self.new_parameter(3)

    def initialise(self, generator: Generator) -> None:
        super().initialise(generator)
        self.spare.data.zero_()


class Idle(Honest):
    kind = IdleLinear


class NumbLinear(LoraLinear):
    def adapted_output(self, x: Tensor) -> Tensor:
        return self.base_output(x) + 0 * (super().adapted_output(x))


class Numb(Honest):
    kind = NumbLinear


class HalfLinear(LoraLinear):
    def delta_weight(self) -> Tensor:
        return 0.5 * super().delta_weight()


class Half(Honest):
    kind = HalfLinear


class Forgetful(Honest):
    def saved_state(self, model: TrainModel) -> list[str]:
        return [name for name in super().saved_state(model) if not name.endswith("lora_B")]


class CountingLinear(LoraLinear):
    """What it has learned, it has learned in an attribute."""

    seen = 0.0

    def adapted_output(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += 0.1
        return super().adapted_output(x) * (1 + self.seen)

    def initialise(self, generator: Generator) -> None:
        super().initialise(generator)
        self.seen = 0.0


class Counting(Honest):
    kind = CountingLinear


class WideLinear(LoraLinear):
    def adapted_output(self, x: Tensor) -> Tensor:
        return super().adapted_output(x).float()


class Wide(Honest):
    kind = WideLinear


class Thawing(Honest):
    """It trains a weight of the base as well."""

    def trainable_parameters(self, model: TrainModel) -> list[str]:
        weights = [name for name, _ in model.named_parameters() if name.endswith("o_proj.weight")]
        return [*super().trainable_parameters(model), *weights]


class Sober(Honest):
    """Its fault is in what it declares."""


class LeakyLinear(LoraLinear):
    """A gate that is normalised over the tokens, where features were meant."""

    def adapted_output(self, x: Tensor) -> Tensor:
        update = super().adapted_output(x) - self.base_output(x)
        return self.base_output(x) + update * (1 + softmax(update, dim=1))

    def merged_weight(self) -> Tensor:
        raise UsageError("it depends on the tokens")


class Leaky(Honest):
    kind = LeakyLinear


class ShyLinear(LoraLinear):
    """Merges nothing, which its component does not declare."""

    def merged_weight(self) -> Tensor:
        raise UsageError("it cannot be merged")


class Shy(Honest):
    kind = ShyLinear


class RoughLinear(LoraLinear):
    """Adds to the weight, and takes away again."""

    merged = False

    def adapted_output(self, x: Tensor) -> Tensor:
        return self.base_output(x) if self.merged else super().adapted_output(x)

    def merge(self) -> None:
        self.weight.data += self.delta_weight()
        self.merged = True

    def unmerge(self) -> None:
        self.weight.data -= self.delta_weight()
        self.merged = False


class Rough(Honest):
    kind = RoughLinear


class RestlessLinear(LoraLinear):
    """Its dropout does not end with training."""

    def adapted_output(self, x: Tensor) -> Tensor:
        return super().adapted_output(x if self.dropout is None else dropout(x, self.dropout.p))


class Restless(Honest):
    kind = RestlessLinear


class SparingLinear(LoraLinear):
    """It has an option, and leaves it."""

    def adapted_output(self, x: Tensor) -> Tensor:
        self.dropout = None
        return super().adapted_output(x)


class Sparing(Honest):
    kind = SparingLinear
