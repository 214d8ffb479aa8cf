"""Several adapters on one live model: switched, stacked and weighed.

With shares s the output of a layer is ``W x + Σ s_i (adapted_i(x) - W x)``, which for adapters of linear layers is that of one
weight ``W + Σ s_i (W_i - W)``, W_i being what adapter i alone merges to: what peft calls ``cat``. (peft's ``linear`` adds the
factors A and B, whose product has other terms besides.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mt_core.adapters.base import Adapter
from mt_core.adapters.linear import adapted_layers, device_of
from mt_core.errors import UsageError, WeightsError, did_you_mean
from mt_core.nn import AdaptedLinear, TrainModel

TensorsOf = Mapping[str, Tensor | Callable[[], Tensor]]


class SeveralAdapters:
    """Several adapters on one model, which then runs, merges and unmerges like a model with one.

    ``add`` takes them one after the other, ``use`` says which of them count. They are for running, not for training.
    """

    def __init__(self, model: TrainModel) -> None:
        if taken := next(adapted_layers(model), None):
            raise UsageError(f"{taken[0]} has an adapter already; give a model without one")
        self.model = model
        self._names: list[str] = []
        self._layers: dict[str, WeighedLinear] = {}
        self.shares: dict[str, float] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the adapters that have been added."""
        return tuple(self._names)

    @torch.no_grad()
    def add(self, name: str, adapter: Adapter, tensors: TensorsOf | Callable[[TrainModel], TensorsOf]) -> None:
        """Put one more beside the others; it counts once ``use`` says so.

        ``tensors`` are its parameters by the model's names, or a function that gives them for the model with the adapter in it.
        Raises ``UsageError`` for one that does more than stand for linear layers, ``WeightsError`` for tensors that do not fit.
        """
        if name in self._names:
            raise UsageError(f"there is an adapter {name!r} already; choose another name")
        self._refuse_merged()
        try:
            self._show_base()
            layers = _injected_layers(self.model, adapter, name)
            found = tensors(self.model) if callable(tensors) else tensors
            if getattr(adapter, "rewrites_base", False):
                _own_base(layers)
            _fill(layers, found, name)
            for place, layer in layers.items():
                if place not in self._layers:
                    self._layers[place] = WeighedLinear(layer.base)
                self._layers[place].layers[name] = layer.eval().requires_grad_(False)
            self._names.append(name)
        finally:
            for place, layer in [*adapted_layers(self.model)]:  # those that are there where it failed half-way, too
                self.model.set_submodule(place, layer.base)
            for place, weighed in self._layers.items():
                self.model.set_submodule(place, weighed)

    def use(self, shares: str | Mapping[str, float] | None) -> None:
        """One adapter by name, several with a share each (1 is all of it), or ``None`` for the model alone."""
        self._refuse_merged()
        given = {} if shares is None else {shares: 1.0} if isinstance(shares, str) else dict(shares)
        for name in given:
            if name not in self._names:
                known = ", ".join(self._names) or "none"
                raise UsageError(f"no adapter {name!r}. {did_you_mean(name, self._names)}There are: {known}")
        self.shares = given
        for layer in self._layers.values():
            layer.shares = {name: share for name, share in given.items() if name in layer.layers}

    def _refuse_merged(self) -> None:
        if any(layer.is_merged for layer in self._layers.values()):
            raise UsageError("the adapters are merged into the weights; unmerge(model) first")

    def _show_base(self) -> None:
        for place, layer in self._layers.items():
            self.model.set_submodule(place, layer.base)


class WeighedLinear(AdaptedLinear):
    """A linear layer and those that adapters have put in its place, each with a share."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__(base)
        self.__dict__["layers"] = {}  # no children: the model has the names, and the layers, that it had
        self.layers: dict[str, AdaptedLinear]
        self.shares: dict[str, float] = {}

    def adapted_output(self, x: Tensor) -> Tensor:
        """(…, E) -> (…, F)."""
        if list(self.shares.values()) == [1.0]:
            return self._active_layer().adapted_output(x)
        plain = out = self.base_output(x)
        for name, share in self.shares.items():
            out = out + share * (self.layers[name].adapted_output(x) - plain)
        return out

    def merged_weight(self) -> Tensor:
        """(F, E), in fp32."""
        if list(self.shares.values()) == [1.0]:
            return self._active_layer().merged_weight()
        plain = self.base_weight()
        out = plain.clone()
        for name, share in self.shares.items():
            out += share * (self.layers[name].merged_weight() - plain)
        return out

    def merged_bias(self) -> Tensor | None:
        """(F), likewise."""
        plain = out = self.bias
        for name, share in self.shares.items():
            other = self.layers[name].merged_bias()
            if plain is None or out is None or other is None:
                if other is not None:
                    raise UsageError(
                        f"the adapter {name!r} has a bias and the model has none there; it cannot be merged"
                    )
                continue
            out = out + share * (other - plain)
        return out

    def _active_layer(self) -> AdaptedLinear:
        return self.layers[next(iter(self.shares))]

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        for layer in self.layers.values():
            layer._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]


def _injected_layers(model: TrainModel, adapter: Adapter, name: str) -> dict[str, AdaptedLinear]:
    """The layers that an adapter has put in. Raises ``UsageError`` where it has done more."""
    before = {each for each, _ in model.named_parameters()}
    adapter.inject(model)
    layers = dict(adapted_layers(model))
    own = {f"{place}.{each}" for place, layer in layers.items() for each, _ in layer.own_parameters()}
    now = {each for each, _ in model.named_parameters()} | set(adapter.trainable_parameters(model))
    if more := sorted((now - before - own) | (set(adapter.trainable_parameters(model)) - own)):
        raise UsageError(
            f"the adapter {name!r} has {', '.join(more[:4])} beside what it puts in the place of linear layers; only"
            " adapters that stand for linear layers can be several"
        )
    return layers


def _own_base(layers: Mapping[str, AdaptedLinear]) -> None:
    """A copy of the weights that an adapter rewrites: the others go on with the ones that there were."""
    for place, layer in layers.items():
        if not layer.is_plain:
            raise UsageError(f"{place} is no plain linear layer, and the adapter rewrites its weight; use it alone")
        with device_of(layer):
            for each, value in layer.base.named_parameters(recurse=False):
                layer.register_parameter(each, nn.Parameter(value.detach().clone()))


def _fill(layers: Mapping[str, AdaptedLinear], tensors: TensorsOf, name: str) -> None:
    """Put the values; a parameter that several layers share may have them under any of its names."""
    places = {f"{place}.{each}": p for place, layer in layers.items() for each, p in layer.named_parameters()}
    filled, wrong = set(), [f"{each} has no place" for each in sorted(set(tensors) - set(places))]
    for each in [each for each in tensors if each in places]:
        given = tensors[each]
        value = given if isinstance(given, Tensor) else given()
        if value.shape != places[each].shape:
            wrong.append(f"{each} is {tuple(value.shape)} and has to be {tuple(places[each].shape)}")
            continue
        places[each].copy_(value)
        filled.add(id(places[each]))
    own = {
        f"{place}.{each}": parameter
        for place, layer in layers.items()
        for each, parameter in layer.own_parameters()
        if id(parameter) not in filled
    }
    if wrong := [*wrong, *(f"{each} is not given" for each in own)]:
        raise WeightsError(f"the tensors of {name!r} do not fit this model: {'; '.join(wrong[:6])}")
