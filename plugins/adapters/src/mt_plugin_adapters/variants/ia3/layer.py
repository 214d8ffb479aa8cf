"""Gains of a linear layer's outputs, or of its inputs. Shapes: E inputs, F outputs."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Generator, Tensor, nn

from mt_core import UsageError
from mt_core.adapters import (
    LinearAdapter,
    PeftForm,
    Place,
    adapted_layers,
    linear_layers,
    names,
    require_named,
    target_keys,
    tensor_names,
)
from mt_core.nn import AdaptedLinear, TrainModel

from .config import Ia3Config


class Ia3Linear(AdaptedLinear):
    """``ia3_l`` is (E) with ``of_inputs``, else (F), and then of the bias too, as in peft."""

    def __init__(self, base: nn.Module, *, of_inputs: bool) -> None:
        super().__init__(base)
        self.of_inputs = of_inputs
        self.ia3_l = self.new_parameter(self.in_features if of_inputs else self.out_features)

    def initialise(self, generator: Generator) -> None:
        """All 1: the first output is that of the base."""
        self.ia3_l.data.fill_(1.0)

    def adapted_output(self, x: Tensor) -> Tensor:
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

    def inject(self, model: TrainModel) -> None:
        """See ``LinearAdapter``. Raises ``UsageError`` for a model without the paper's projections, unless others are named."""
        usual = Ia3Config().targets
        own = {name.rpartition(".")[2] for name in linear_layers(model) if not name.startswith("media.")}
        if self.config.targets == usual and (missing := sorted(set(usual or ()) - own)):
            raise UsageError(
                f"adapter.targets: ia3 trains gains of keys, values and the feed-forward ({', '.join(usual or ())}), and this model has no"
                f" {', '.join(missing)}; name projections of its own with --adapter.targets: {', '.join(sorted(own))}"
            )
        super().inject(model)

    def layer(self, base: nn.Module, place: Place) -> Ia3Linear:
        """See ``LinearAdapter``. Raises ``UsageError`` for a pattern of ``feedforward`` that names no target."""
        require_named("adapter.feedforward", self.config.feedforward or (), place.targets)
        patterns = ("down_proj",) if self.config.feedforward is None else self.config.feedforward
        return Ia3Linear(base, of_inputs=any(names(place.name, each) for each in patterns))

    def peft_form(self, model: TrainModel) -> PeftForm:
        """IA3, whose gains of outputs are a column there, and those of inputs a row."""
        layers = {name: layer for name, layer in adapted_layers(model) if isinstance(layer, Ia3Linear)}
        shapes = {
            f"{name}.ia3_l": (1, layer.in_features) if layer.of_inputs else (layer.out_features, 1)
            for name, layer in layers.items()
        }
        keys = target_keys(model)
        kinds = {each: _of_inputs(each, layers) for each in keys["target_modules"]}
        if any(len(kind) > 1 for kind in kinds.values()):  # peft knows both kinds by the same words
            keys["target_modules"] = sorted(layers)
            kinds = {each: _of_inputs(each, layers) for each in layers}
        inner = sorted(each for each, kind in kinds.items() if kind == {True})
        return PeftForm(
            config={"peft_type": "IA3", "feedforward_modules": inner, "init_ia3_weights": True, **keys},
            names=tensor_names(model, {"ia3_l": "ia3_l"}),
            shapes=shapes,
            training=frozenset(["init_ia3_weights"]),
        )


def _of_inputs(ending: str, layers: Mapping[str, Ia3Linear]) -> set[bool]:
    """Tell of the layers whose names end so whether the gains are of inputs."""
    return {layer.of_inputs for name, layer in layers.items() if f".{name}".endswith(f".{ending}")}
