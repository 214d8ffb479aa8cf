"""Adapters that are merged into the weights under a run's own, one layer at a time, while these are read.

A value is made when it is asked for: the layer that has it is put together on the CPU in fp32, merged, and let go. Whoever reads the
weights, a rank of ZeRO 3, a stage of a pipeline or a quantizer, then reads merged ones, and nobody holds a second model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from mt_core.adapters.base import Adapter
from mt_core.adapters.linear import adapted_layers
from mt_core.errors import WeightsError
from mt_core.nn import AdaptedLinear, TrainModel, expert_layouts
from mt_core.weights import Loaders, listed_experts
from mt_train.adapters.folder import AdapterFolder
from mt_train.assemble.base_files import base_files, hashes_under
from mt_train.assemble.expert_forms import fit_experts
from mt_train.assemble.parts import Parts
from mt_train.engine.build import TensorSource, value_of
from mt_train.engine.meta import exchange, on_meta
from mt_train.plugins.saved_adapter import AdapterCheckpoint, SavedAdapter

Say = Callable[[str], None]
SAME = 1e-4
"""Largest difference of a weight from another one, as a share of its norm, that rounding can make."""


@dataclass(frozen=True)
class AdapterPlacement:
    """A saved adapter in a model without memory, and its values by the names there."""

    model: TrainModel
    adapter: Adapter
    tensors: Loaders
    folder: AdapterFolder
    base_names: frozenset[str]
    """Names of the model's own parameters."""

    @classmethod
    def of(cls, saved: SavedAdapter, parts: Parts, *, is_stated: bool = True) -> Self:
        """Put it there. Raises ``WeightsError`` for an adapter of another model."""
        with on_meta():
            model = parts.model(adaptable=True)
            base = frozenset(name for name, _ in model.named_parameters())
            adapter = saved.build()
            saved.folder.check_places(model)
            adapter.inject(model)
        found = saved.tensors(adapter, model, stated=is_stated)
        shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        wrong = [f"it has {name}, and the model has not" for name in found if name not in shapes]
        wrong += [f"it lacks {name}" for name in shapes.keys() - base - found.keys()]
        for name in found.keys() & shapes.keys():
            shape = found[name]().shape
            if shape != shapes[name]:
                wrong.append(f"{name} is {tuple(shape)} there and {tuple(shapes[name])} in this model")
        if wrong:
            more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
            raise WeightsError(
                f"{saved.folder.path} is an adapter of another model: {'; '.join(sorted(wrong)[:3])}{more}. Give the weights that it"
                " was trained over"
            )
        return cls(model, adapter, found, saved.folder, base)

    def differs_from(self, source: TensorSource, seed: int) -> bool:
        """Return whether a whole checkpoint has frozen weights under its adapter that are not these.

        It has no hashes of the files that they were read from. The rounding of merged weights, in another order of sums, is allowed.
        """
        if not isinstance(self.folder, AdapterCheckpoint) or self.folder.written["base"]:
            return False
        frozen, own = self.folder.tensors(), dict(self.model.named_parameters())
        names = [f"{place}.weight" for place, _ in adapted_layers(self.model)]
        return any(
            _is_other(value_of(self.model, name, own[name].shape, source, seed), frozen[name]())
            for name in names
            if name in frozen and name in own and name not in self.tensors
        )


def _is_other(ours: Tensor, theirs: Tensor) -> bool:
    if ours.shape != theirs.shape:
        return True
    ours, theirs = ours.to("cpu", theirs.dtype).float(), theirs.float()
    return bool((ours - theirs).norm() > SAME * theirs.norm())


def other_weights(saved: SavedAdapter) -> WeightsError:
    """The error for a checkpoint whose frozen weights are not those here."""
    under = saved.folder.written.get("under")
    advice = f", and --model.adapters {','.join(map(str, under))} before it" if under else ""
    return WeightsError(
        f"{saved.folder.path} was trained over other weights than these: its checkpoint has them. Give the --model.weights of its run"
        f"{advice}"
    )


def merged_weights(parts: Parts, source: TensorSource, names: set[str], say: Say) -> TensorSource:
    """The weights with ``model.adapters`` in them. ``names`` are those that the model has; what is not in ``source`` is drawn.

    Raises ``WeightsError`` for an adapter of another model or of other weights, and for one that weights cannot stand for.
    """
    paths = [each.folder.path for each in parts.merged]
    for path in sorted({path for path in paths if paths.count(path) > 1}):
        say(f"notice: model.adapters names {path} {paths.count(path)} times, and it is merged as often")
    known = base_files(parts) if any(each.folder.written.get("base") for each in parts.merged) else {}
    seed = parts.config.train.seed
    if parts.merged:
        source = _listed(parts, source)
    weights = source
    for number, saved in enumerate(parts.merged, 1):
        placed = AdapterPlacement.of(saved, parts)
        own = {name: load for name, load in placed.tensors.items() if name in placed.base_names}
        _check_base(saved, known, number, rewrites=bool(own), say=say)
        if placed.differs_from(source, seed) and placed.differs_from(weights, seed):
            raise other_weights(saved)
        layers = dict(adapted_layers(placed.model))
        source = {**source, **own, **dict(_merged_layers(placed, layers, {**source, **own}, seed, saved.folder.path))}
        if unknown := sorted(source.keys() - names - placed.base_names):
            raise WeightsError(
                f"{saved.folder.path} gives the model {', '.join(unknown[:4])}, for which it has no place"
            )
        more = f", {len(own)} weights replaced" if own else ""
        say(f"adapter {saved.folder.path} ({saved.component.name}): {len(layers)} layers merged{more}")
    return fit_experts(parts, source, names)


def _listed(parts: Parts, source: TensorSource) -> TensorSource:
    """Return the weights with experts listed, as adapters have them; those that are not given are drawn, since some may become others."""
    with on_meta():
        model = parts.model(adaptable=True)
    layouts, shapes = expert_layouts(model), {name: each.shape for name, each in model.named_parameters()}
    drawn = {
        name: partial(value_of, model, name, shape, {}, parts.config.train.seed)
        for name, shape in shapes.items()
        if any(name.startswith(f"{place}.") for place in layouts)
    }
    return {**drawn, **listed_experts(source, layouts)}


def _check_base(saved: SavedAdapter, known: Mapping[str, str], number: int, *, rewrites: bool, say: Say) -> None:
    """Refuse an adapter of other weights, as far as hashes tell; peft writes none.

    One that adds to the weights may have been trained without the adapters before it, which is said; one that replaces weights may not.
    """
    before = set((saved.folder.written.get("base") or {}).values())
    weights, adapters = hashes_under(known, number - 1)
    path = saved.folder.path
    if rewrites and number > 1 and not before:
        raise WeightsError(
            f"{path} holds weights of the model that its run has rewritten or trained, and not over which adapters; put it first, or"
            " export it from its run"
        )
    if not before or before == weights | adapters:
        return
    if not weights <= before:
        raise WeightsError(
            f"{path} was trained on other weights than these: the files have other hashes. Give the --model.weights of its run"
        )
    if more := before - weights - adapters:
        raise WeightsError(
            f"{path} was trained on other weights than these: its run has merged adapters under it, {len(more)} of whose files are not"
            " before it here; give them in --model.adapters, too, as they were"
        )
    if rewrites:
        raise WeightsError(
            f"{path} holds weights of the model that its run has rewritten or trained, with other adapters merged under them than those"
            " before it here; give all of its run's --model.adapters before it, and no others"
        )
    say(f"notice: {path} was trained over these weights, and not over the adapters that are merged before it here")


def _merged_layers(
    placed: AdapterPlacement, layers: Mapping[str, AdaptedLinear], source: TensorSource, seed: int, path: Path
) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Yield each weight of the model that is another one once it is merged, with what computes it."""
    names = {id(parameter): name for name, parameter in placed.model.named_parameters()}
    own = {id(parameter) for layer in layers.values() for _, parameter in layer.own_parameters()}
    if others := sorted(name for key, name in names.items() if name not in placed.base_names and key not in own):
        raise WeightsError(
            f"{path} brings {', '.join(others[:4])} beside what stands for linear layers, which the weights have no place for; train on"
            f" from it with --adapter.weights {path}"
        )

    def read(parameter: nn.Parameter) -> Tensor:
        name = names[id(parameter)]
        if name in placed.base_names:
            return value_of(placed.model, name, parameter.shape, source, seed)
        return placed.tensors[name]()

    for place, layer in layers.items():
        bias = layer.merged_bias()
        if bias is not None and layer.bias is None:
            raise WeightsError(
                f"{path} gives {place} a bias, for which the model has no place; train on from it instead"
            )
        for each in ("weight",) if bias is layer.bias else ("weight", "bias"):
            yield f"{place}.{each}", partial(_merge_layer, layer, each, read)


@torch.no_grad()
def _merge_layer(layer: AdaptedLinear, name: str, read: Callable[[nn.Parameter], Tensor]) -> Tensor:
    """One parameter of the layer's base, merged: in fp32, so that it is rounded once, to what the model has."""
    empty, alone = list(layer.named_parameters()), deepcopy(layer).eval()
    places = dict(alone.named_parameters())
    with torch.device("cpu"):
        filled = [(places[each], _as_parameter(read(parameter))) for each, parameter in empty]
        for module in (alone, alone.base):  # which have the base's parameters both
            exchange(module, filled)
        alone.merge()
    return alone.get_parameter(name).detach()


def _as_parameter(value: Tensor) -> nn.Parameter:
    """A copy of its own, in fp32 where it is a floating-point number."""
    value = value.to(torch.float32, copy=True) if value.is_floating_point() else value.clone()
    return nn.Parameter(value, requires_grad=False)
