"""The layers of one pipeline stage: every parameter of the model has a name and a shape here, and only its own have values.

A layer's parameters keep the names of the whole model's ``state_dict``, so that checkpoints and initial weights are those
of any other layout. The parameters of other stages are on torch's meta device and take no memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from mt_core.errors import ComponentError, ConfigError
from mt_core.groups import MEDIA
from mt_core.nn import Layer, LayerSpec, TrainModel
from mt_train.engine.build import ALL_FP32, Dtypes, without_memory
from mt_train.engine.layout import too_many_stages
from mt_train.engine.media_inputs import MediaInputs
from mt_train.engine.meta import exchange, with_memory
from mt_train.engine.partition import partition
from mt_train.engine.plan import Plan
from mt_train.engine.processes import Process

UNUSED = "unused"
"""The parameter group of a stage that trains nothing. It is no parameter of the model, so it is neither saved nor counted."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Part of the model that this rank has. ``bounds`` are those of ``partition``; ``holders`` say who has each parameter."""

    model: TrainModel
    index: int
    bounds: tuple[int, ...]
    holders: dict[str, tuple[int, ...]]
    titles: tuple[str, ...]

    @property
    def layers(self) -> range:
        """Numbers of the own layers, in ``model.layers()``."""
        return range(self.bounds[self.index], self.bounds[self.index + 1])

    @property
    def is_last(self) -> bool:
        """Return whether head and loss are here."""
        return self.index == len(self.bounds) - 2

    def shared_parameters(self) -> dict[str, tuple[int, ...]]:
        """Parameters that several stages have (tied embeddings), and which."""
        return {name: stages for name, stages in self.holders.items() if len(stages) > 1}

    def own_groups(self, groups: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Parameter groups of the whole model without what other stages have; empty ones are left out.

        Where nothing of this stage is trained there is one with a parameter that nothing uses: DeepSpeed asks for some.
        """
        mine = [{**group, "params": [p for p in group["params"] if not p.is_meta]} for group in groups]
        mine = [group for group in mine if group["params"]]
        unused = {"name": UNUSED, "params": [nn.Parameter(torch.zeros(1))], "weight_decay": 0.0}
        return mine or [unused]


def add_shared_parameters(stage: Stage, device: torch.device) -> Stage:
    """The stage once an adapter is in its model: parameters that layers share are on the stages that have such a layer."""
    holders = _holders(stage.model, stage.bounds)
    pairs = []
    for name, parameter in stage.model.named_parameters():
        if parameter.is_meta == (stage.index in holders[name]):
            place = device if parameter.is_meta else torch.device("meta")
            pairs.append((parameter, with_memory(parameter, place)))  # with what its layers have agreed on
    exchange(stage.model, pairs)
    return replace(stage, holders=holders)


def build_stage(
    make: Callable[[], TrainModel],
    offered: Sequence[LayerSpec] | None,
    *,
    plan: Plan,
    process: Process,
    dtypes: Dtypes = ALL_FP32,
) -> Stage:
    """The model with this rank's layers on its device, values still arbitrary.

    ``offered`` are a plugin's layers; without them they are taken from the model, with their parameters as costs.
    """
    parts = cut(make, offered, plan.pipeline)
    model, bounds = parts.model, parts.bounds
    index = process.rank // plan.sharing_ranks
    own = parts.specs[bounds[index] : bounds[index + 1]]
    with process.device:
        with without_memory() if dtypes else contextlib.nullcontext():
            built = {spec.prefix: spec.build() for spec in own}
        _place(model, built | (_media(model) if index == 0 else {}), process.device, dtypes)
    titles = tuple(_title(_modules(model, start, end)) for start, end in pairwise(bounds))
    return Stage(model=model, index=index, bounds=bounds, holders=parts.holders, titles=titles)


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A model without memory, and where it is cut into stages."""

    model: TrainModel
    specs: list[LayerSpec]
    bounds: tuple[int, ...]
    holders: dict[str, tuple[int, ...]]


def cut(make: Callable[[], TrainModel], offered: Sequence[LayerSpec] | None, stages: int) -> Cut:
    """The best cut; blocks behind which media are added stay with the first layer, which makes what is added.

    Raises ``ConfigError`` for too many stages, ``ComponentError`` for a model that cannot be cut.
    """
    with without_memory():
        model = make()
    if offered is None and type(model).forward is not TrainModel.forward:
        raise ComponentError(
            f"{type(model).__name__} has a forward of its own, which a pipeline of its layers() would leave out; move what"
            " it does into the layers, or offer them through mt_pipeline_layers"
        )
    specs = list(offered) if offered is not None else derived_layers(model)
    assert model.media is None or isinstance(model.media, MediaInputs), "encoders of a model are its MediaInputs"
    joined = 0 if model.media is None else model.media.levels
    if stages > len(specs) - joined:
        raise ConfigError([too_many_stages(stages, len(specs) - joined, joined)])
    if offered is not None:
        _check_offered(model, specs)
    costs = _costs(model, specs)
    bounds = partition([sum(costs[: 1 + joined]), *costs[1 + joined :]], stages)
    bounds = [0, *(bound + joined for bound in bounds[1:])]
    return Cut(model=model, specs=specs, bounds=tuple(bounds), holders=_holders(model, bounds))


def derived_layers(model: TrainModel) -> list[LayerSpec]:
    """The model's own layers; what one costs is the number of its parameters, a shared one counted wherever it is used."""
    keys = _tie_keys(model)
    return [
        LayerSpec(
            prefix=layer.prefix,
            build=partial(nn.Module.get_submodule, model, layer.prefix),
            cost=float(_count_numbers([layer.module])),
            tie_key=keys[number],
        )
        for number, layer in enumerate(model.layers())
    ]


def _costs(model: TrainModel, specs: Sequence[LayerSpec]) -> list[float]:
    """Return what each layer costs; encoders are part of the first, as if each token were a feature of every one."""
    first, *others = (spec.cost for spec in specs)
    if model.media is None:
        return [first, *others]
    numbers = _count_numbers([layer.module for layer in model.layers()])
    return [first + _count_numbers([model.media]) * (first + sum(others)) / numbers, *others]


def _count_numbers(modules: Sequence[nn.Module]) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def _media(model: TrainModel) -> dict[str, nn.Module]:
    """Return the modules that encode media by the prefix of their parameters; empty for a model of text alone."""
    return {} if model.media is None else {MEDIA: model.media}


def _modules(model: TrainModel, start: int, end: int) -> list[Layer]:
    """The layers from ``start`` up to ``end``, the first of all with what encodes media."""
    beside = [Layer(prefix, module) for prefix, module in _media(model).items()] if start == 0 else []
    return [*beside, *model.layers()[start:end]]


def _tie_keys(model: TrainModel) -> list[str | None]:
    """Return for each layer the first name of a parameter that another layer has too."""
    layers = [{id(parameter) for parameter in layer.module.parameters()} for layer in model.layers()]
    names = [(id(parameter), name) for name, parameter in model.named_parameters()]
    often = {key for key, _ in names if sum(key in layer for layer in layers) > 1}
    return [next((name for key, name in names if key in often and key in layer), None) for layer in layers]


def _check_offered(model: TrainModel, specs: Sequence[LayerSpec]) -> None:
    """Raises ``ComponentError`` when a plugin's layers are not those of its model."""
    prefixes, keys = [layer.prefix for layer in model.layers()], _tie_keys(model)
    if [spec.prefix for spec in specs] != prefixes:
        raise ComponentError(
            f"mt_pipeline_layers gives the layers {', '.join(spec.prefix for spec in specs)}, and the model has"
            f" {', '.join(prefixes)}; give the same prefixes in the same order"
        )

    def numbers_of(found: Sequence[str | None]) -> list[int | None]:
        return [None if key is None else found.index(key) for key in found]

    if numbers_of([spec.tie_key for spec in specs]) != numbers_of(keys):
        raise ComponentError(
            "the tie_key of the layers that mt_pipeline_layers gives does not say what the model shares:"
            f" {[spec.tie_key for spec in specs]} beside {keys}; equal keys where layers share a weight, else None"
        )


def _holders(model: TrainModel, bounds: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Return for each parameter the stages that have it, in the order of the model. Raises ``ComponentError`` for one that none has."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found: dict[str, set[int]] = {name: set() for name in names.values()}
    for stage, (start, end) in enumerate(pairwise(bounds)):
        for layer in _modules(model, start, end):
            for parameter in layer.module.parameters():
                found[names[id(parameter)]].add(stage)
    if lost := [name for name, stages in found.items() if not stages]:
        raise ComponentError(
            f"{', '.join(lost)} belong to no layer of the model, so no pipeline stage would have them; every parameter"
            " belongs into one of layers()"
        )
    return {name: tuple(sorted(stages)) for name, stages in found.items()}


def _place(model: TrainModel, built: dict[str, nn.Module], device: torch.device, dtypes: Dtypes) -> None:
    """Put the built layers into the model, and their parameters wherever the model shares them.

    Raises ``ComponentError`` when a layer has other parameters than the model has there.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    exchanged: list[tuple[nn.Parameter, nn.Parameter]] = []
    taken: dict[int, nn.Parameter] = {}
    for prefix, module in built.items():
        before = model.get_submodule(prefix)
        wanted, found = (dict(each.named_parameters(remove_duplicate=False)) for each in (before, module))
        if {name: p.shape for name, p in wanted.items()} != {name: p.shape for name, p in found.items()}:
            raise ComponentError(
                f"the layer {prefix} that mt_pipeline_layers builds has other parameters than the model:"
                f" {', '.join(sorted(found))} beside {', '.join(sorted(wanted))}"
            )
        for name, parameter in wanted.items():
            own = found[name]
            if id(parameter) not in taken:
                dtype = dtypes.get(names[id(parameter)])
                taken[id(parameter)] = with_memory(own, device, dtype) if own.is_meta else own
                exchanged.append((parameter, taken[id(parameter)]))
            exchanged.append((own, taken[id(parameter)]))
        model.set_submodule(prefix, module)
    exchange(model, exchanged)


def _title(layers: Sequence[Layer]) -> str:
    """Format for people: ``model.embed_tokens … model.layers.3, 1,234,567 parameters``."""
    ends = " … ".join(dict.fromkeys([layers[0].prefix, layers[-1].prefix]))
    parameters = _count_numbers([layer.module for layer in layers])
    return f"{ends}, {parameters:,} parameters"
