"""A linear layer whose bias the adapter has brought."""

from __future__ import annotations

from torch import Generator, Tensor, nn
from torch.nn import functional

from mt_core import Adapter, UsageError
from mt_core.adapters import device_of, linear_layers, targets_of
from mt_core.nn import AdaptedLinear, TrainModel

from .config import BitFitConfig


class BiasedLinear(AdaptedLinear):
    """W x + bias. The bias has the name of the one that the layer did not have."""

    bias: Tensor

    def __init__(self, base: nn.Module) -> None:
        super().__init__(base)
        self.bias = self.new_parameter(self.out_features)

    def initialise(self, generator: Generator) -> None:
        """Zero."""
        self.bias.data.zero_()

    def base_output(self, x: Tensor) -> Tensor:
        """(…, E) -> (…, F), without the bias, unless the model is merged."""
        return functional.linear(x, self.weight) if self.is_plain and not self.is_merged else super().base_output(x)

    def adapted_output(self, x: Tensor) -> Tensor:
        """(…, E) -> (…, F)."""
        out = super().base_output(x)
        return out if self.is_plain else out + self.bias.to(out.dtype)

    def merged_weight(self) -> Tensor:
        """The base's weight."""
        return self.base_weight()


class BitFit(Adapter):
    """Trains the biases."""

    def __init__(self, config: BitFitConfig) -> None:
        self.config = config

    def inject(self, model: TrainModel) -> None:
        """Add those that are asked for."""
        if not self.config.add:
            return
        for name, base in targets_of(model, self.config).items():
            if getattr(base, "bias", None) is None:
                with device_of(base):
                    model.set_submodule(name, BiasedLinear(base))

    def trainable_parameters(self, model: TrainModel) -> list[str]:
        """Every parameter that its module calls ``bias``, but for those of encoders of media. Raises ``UsageError`` where there is none."""
        of_media = set() if model.media is None else {id(parameter) for parameter in model.media.parameters()}
        biases = [
            name
            for name, parameter in model.named_parameters()
            if name.rpartition(".")[2] == "bias" and id(parameter) not in of_media
        ]
        if not biases:
            raise UsageError(
                f"{type(model).__name__} has no bias among its {len(linear_layers(model))} linear layers;"
                " --adapter.add true gives its projections some, or use --adapter ia3"
            )
        return biases
