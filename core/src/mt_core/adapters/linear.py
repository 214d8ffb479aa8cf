"""An adapter that stands in for linear layers: a variant is a config, a layer, and what is its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Generic, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

from mt_core.adapters.base import Adapter
from mt_core.adapters.config import LowRankConfig, TargetConfig
from mt_core.adapters.targets import require_named, targets_of
from mt_core.errors import UsageError
from mt_core.groups import block_number
from mt_core.nn import AdaptedLinear, LossFactor, SharedParameters, TrainModel
from mt_core.step_context import AdapterContext

ConfigT = TypeVar("ConfigT", bound=TargetConfig)
View = Literal["live", "base"]


@dataclass(frozen=True)
class Place:
    """Place of a layer: its name in the model, the number of its block (``None`` outside), and the names of all targets.

    ``loss_factor`` is for a loss term of the layer (``mt_core.nn.with_loss``).
    """

    name: str
    block: int | None
    targets: tuple[str, ...]
    loss_factor: LossFactor = field(default_factory=LossFactor)

    @property
    def kind(self) -> str:
        """Return the name that equal projections of all blocks share: ``self_attn.q_proj`` of ``model.layers.3.self_attn.q_proj``."""
        return self.name if self.block is None else self.name.partition(f".{self.block}.")[2]

    @property
    def blocks(self) -> int:
        """Return how many blocks have targets."""
        return len({block_number(name + ".") for name in self.targets} - {None})


class LinearAdapter(Adapter, Generic[ConfigT]):
    """Replaces every target by ``layer(...)``, and trains the parameters of these layers."""

    rewrites_base = False

    def __init__(self, config: ConfigT) -> None:
        self.config = config
        self.store = SharedParameters()
        """Parameters that several layers have, by key: what ``layer`` passes to ``AdaptedLinear.shared``. On a pipeline each stage
        has a copy of those that its layers use, and their gradients are added up."""

    @property
    def base_is_reference(self) -> bool:
        """See ``Adapter``. One whose layers begin as another model than their base says ``base_is_reference = False``."""
        return not self.rewrites_base

    def layer(self, base: nn.Module, place: Place) -> AdaptedLinear | None:
        """Return the layer that replaces ``base``, or ``None`` to keep ``base``."""
        raise NotImplementedError

    def inject(self, model: TrainModel) -> None:
        """Replace the targets. Raises ``UsageError`` for a pattern that matches no layer."""
        targets = targets_of(model, self.config)
        for key in ("ranks", "alphas"):
            require_named(f"adapter.{key}", tuple(getattr(self.config, key, ())), tuple(targets))
        self._check_ranks(targets)
        names = tuple(targets)
        for name, base in targets.items():
            with device_of(base):
                layer = self.layer(base, Place(name, block_number(f"{name}."), names, model.loss_factor))
            if layer is not None:
                model.set_submodule(name, layer)

    def _check_ranks(self, targets: dict[str, nn.Module]) -> None:
        if self.has_values or not isinstance(self.config, LowRankConfig):
            return  # what others have trained is read as it is
        for name, base in targets.items():
            rank, most = self.config.rank_of(name), min(int(base.in_features), int(base.out_features))  # type: ignore[arg-type]
            if rank > most:
                raise UsageError(
                    f"adapter.rank: {rank} is more than {name} has, which is {base.out_features} x {base.in_features};"
                    f" at most {most} there (--adapter.rank, or --adapter.ranks for this projection alone)"
                )

    def trainable_parameters(self, model: TrainModel) -> list[str]:
        """Return the parameters that the layers have of their own and declare ``trained``; a shared parameter under its first name."""
        trained = {
            id(parameter)
            for _, layer in adapted_layers(model)
            for name, parameter in layer.own_parameters()
            if layer.trained is None or name in layer.trained
        }
        return [name for name, parameter in model.named_parameters() if id(parameter) in trained]

    def saved_state(self, model: TrainModel) -> list[str]:
        """Return all that the layers have of their own, and with ``rewrites_base`` the base's weights that they have rewritten."""
        saved = {id(parameter) for _, layer in adapted_layers(model) for _, parameter in layer.own_parameters()}
        if self.rewrites_base:
            saved |= {id(each) for _, layer in adapted_layers(model) for each in layer.parameters(recurse=False)}
        return [name for name, parameter in model.named_parameters() if id(parameter) in saved]

    def parameter_groups(self, model: TrainModel, rate: float) -> list[dict[str, Any]]:
        """Return no groups: the optimizer divides matrices and vectors."""
        return []


def device_of(module: nn.Module) -> torch.device:
    """Return the device of a module's parameters: torch's meta device if another pipeline stage has them."""
    return next(chain(module.parameters(recurse=False), module.buffers(recurse=False))).device


def adapted_layers(model: nn.Module) -> Iterator[tuple[str, AdaptedLinear]]:
    """The layers that an adapter has put into a model, by name."""
    return ((name, module) for name, module in model.named_modules() if isinstance(module, AdaptedLinear))


@contextmanager
def viewing(model: nn.Module, view: View) -> Iterator[None]:
    """Run ``model`` as it is (``live``), or with every adapted layer replaced by its base layer (``base``).

    No weight is touched and no rank is asked: each rank enters it around the same forwards. A backward belongs inside, too. Whether
    the base is the model of step 0 says ``Adapter.base_is_reference``. Raises ``UsageError`` for another view, and for the base of a
    merged model.
    """
    if view not in get_args(View):
        raise UsageError(f"a model has no view {view!r}; it has {', '.join(get_args(View))}")
    layers = [layer for _, layer in adapted_layers(model)]
    if view == "base" and any(layer.is_merged for layer in layers):
        raise UsageError("the adapter is merged into the base, which cannot be viewed any more; unmerge(model) first")
    before = [layer.shows_base for layer in layers]
    try:
        for layer in layers:
            layer.shows_base = view == "base"
        yield
    finally:
        for layer, shown in zip(layers, before, strict=True):
            layer.shows_base = shown


def read_base(context: AdapterContext, name: str, layer: AdaptedLinear) -> Tensor:
    """The base's weight of a layer in a running engine, (F, E), in fp32."""
    if "weight" not in layer._parameters:
        return layer.base_weight()
    stored = context.read(f"{name}.weight").float()
    return stored.T if layer.is_transposed else stored


def write_base(context: AdapterContext, name: str, layer: AdaptedLinear, weight_FE: Tensor) -> None:
    """Rewrite the base's weight of a layer, on all ranks. The adapter declares ``rewrites_base``."""
    if "weight" in layer._parameters:
        context.write(f"{name}.weight", weight_FE.T if layer.is_transposed else weight_FE)
    else:
        layer.put_base_weight(weight_FE)


def merge(model: nn.Module) -> None:
    """Put every adapted layer's merged weight into its base; ``unmerge`` gives the bits back.

    Raises ``UsageError`` where a layer cannot be merged; then none is.
    """
    done = []
    try:
        for _, layer in adapted_layers(model):
            layer.merge()
            done.append(layer)
    except UsageError:
        for layer in done:
            layer.unmerge()
        raise


def unmerge(model: nn.Module) -> None:
    """Restore the base weights bit for bit. Raises ``UsageError`` if nothing is merged."""
    for _, layer in adapted_layers(model):
        layer.unmerge()
