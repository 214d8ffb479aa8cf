"""Builds a model in place for a plan: every rank holds its share, and every tensor gets the same values on any layout."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from mt_core.errors import WeightsError
from mt_core.groups import MEDIA, is_of_media, whole_shape
from mt_core.model_protocols import Quantizer
from mt_core.nn import AdaptedLinear, Experts, StoredLinear, TrainModel, objective_modules, tensor_generator
from mt_core.nn.objective import split_objective_name
from mt_core.weights import fused_experts, load_rows
from mt_train.engine.experts import ExpertRanks, divided_layers, own_rows, part_of
from mt_train.engine.media_inputs import MediaInputs
from mt_train.engine.meta import exchange, with_memory
from mt_train.engine.plan import Plan
from mt_train.engine.precision import DTYPES, widen_kept
from mt_train.engine.processes import Process

TensorSource = Mapping[str, Callable[[], Tensor]]
"""Parameter name → a function that loads this one tensor."""
Dtypes = Mapping[str, torch.dtype]
"""Parameter name → the dtype that it is built in; others are built as the model makes them, in fp32."""
ALL_FP32: Dtypes = {}


def build_model(
    make: Callable[[], TrainModel],
    *,
    plan: Plan,
    settings: dict[str, Any],
    deepspeed: ModuleType,
    process: Process,
    experts: ExpertRanks | None = None,
    dtypes: Dtypes = ALL_FP32,
) -> TrainModel:
    """The model on its device, values still arbitrary; under ZeRO 3 partitioned layer by layer while it is built, in the plan's dtype.

    ``experts`` are the ranks that divide those of each layer. ``zero.Init`` gets no ``dtype``: with ``torch.float32`` it silently builds
    bf16 on a CPU.
    """
    if plan.zero_stage == 3:
        return _build_partitioned(make, plan=plan, settings=settings, deepspeed=deepspeed, experts=experts)
    if experts is not None:
        make = experts.divide(make)
    elif not dtypes:
        with process.device:
            return make()
    with process.device, without_memory():
        model = make()
    _allocate(model, process.device, dtypes)
    return model


def _build_partitioned(
    make: Callable[[], TrainModel],
    *,
    plan: Plan,
    settings: dict[str, Any],
    deepspeed: ModuleType,
    experts: ExpertRanks | None,
) -> TrainModel:
    with deepspeed.zero.Init(config_dict_or_path=settings):
        model = make()
    if experts is not None:
        _divide_partitioned(model, experts, partial(deepspeed.zero.Init, config_dict_or_path=settings))
    wanted = DTYPES[plan.dtype]
    found = {parameter.dtype for parameter in model.parameters()}
    assert found == {wanted}, f"zero.Init built {found}, not {wanted}: its dtype rule has changed"
    widen_kept(model)
    return model


def _divide_partitioned(model: nn.Module, experts: ExpertRanks, partition: Callable[..., object]) -> None:
    """Leave this rank's experts, partitioned over the ranks that hold the same: one layer at a time is there whole meanwhile."""
    for _, layer in divided_layers(model):
        for name, parameter in list(layer.named_parameters(recurse=False)):
            with gather_parameters([parameter]):
                own = experts.own_part(parameter)
            setattr(layer, name, own)
        partition(module=layer)


def build_quantized(
    make: Callable[[], TrainModel], quantizer: Quantizer, device: torch.device, dtypes: Dtypes = ALL_FP32
) -> TrainModel:
    """The model on its device, values still arbitrary, with linear layers that store their weights in fewer bits.

    Every rank has all of it, at stage 3 too: what is quantised is not partitioned.
    """
    with without_memory():
        model = make()
    with device:
        quantizer.replace(model)
    _allocate(model, device, dtypes)
    return model


def build_in(dtype: str, make: Callable[[], TrainModel], device: torch.device) -> TrainModel:
    """The model on its device in this precision, values still arbitrary; what it keeps in fp32 is so. It is there in no other one."""
    with device, without_memory():
        model = make()
    floating = {name: DTYPES[dtype] for name, each in model.named_parameters() if each.is_floating_point()}
    _allocate(model, device, floating)
    widen_kept(model)
    return model


def _allocate(model: nn.Module, device: torch.device, dtypes: Dtypes = ALL_FP32) -> None:
    """Give memory to what has none."""
    named = [(name, each) for name, each in model.named_parameters() if each.is_meta]
    exchange(model, [(each, with_memory(each, device, dtypes.get(name))) for name, each in named])


def stored_layers(model: nn.Module) -> Iterator[tuple[str, StoredLinear]]:
    """Layers whose weights are no parameters, by name, under adapters too."""
    for name, module in model.named_modules():
        base = module.base if isinstance(module, AdaptedLinear) else module
        if isinstance(base, StoredLinear) and "weight" not in base._parameters:
            yield name, base


def weight_names(model: nn.Module) -> list[str]:
    """The model's parameters, and the weights that it stores in another way: what a folder of weights has."""
    return [name for name, _ in model.named_parameters()] + [f"{name}.weight" for name, _ in stored_layers(model)]


def fill_model(
    model: TrainModel, source: TensorSource, *, seed: int, process: Process, only: Container[str] | None = None
) -> None:
    """Give every parameter its value: from ``source`` where it has the name, else drawn from (seed, name).

    A parameter on the meta device belongs to another pipeline stage, and stays there; ``only`` names those that are meant.

    Raises ``WeightsError`` that lists every tensor whose shape is not its parameter's.
    """
    wrong: list[str] = []
    source = {**_drawn_experts(model, seed), **source}
    for name, layer in stored_layers(model):
        if only is None or f"{name}.weight" in only:
            shape = torch.Size((layer.out_features, layer.in_features)[:: -1 if layer.is_transposed else 1])
            read = partial(value_of, model, f"{name}.weight", shape, source, seed)
            layer.original = partial(_transpose, read) if layer.is_transposed else read
            value = read()
            if value.shape == shape:
                layer.put_dense_weight(value.T if layer.is_transposed else value)
            else:
                wrong.append(_misfit(f"{name}.weight", value.shape, shape))
    for name, parameter in model.named_parameters():
        if parameter.is_meta or (only is not None and name not in only):
            continue
        with gather_parameters([parameter], write=True):
            if _writes(parameter):
                shape = torch.Size(whole_shape(parameter))
                load = source.get(name, partial(value_of, model, name, shape, {}, seed))
                if misfit := _put(parameter, name, load):
                    wrong.append(_misfit(name, misfit, shape))
    if wrong:
        raise WeightsError(f"{len(wrong)} tensors have another shape:\n  " + "\n  ".join(wrong))


@torch.no_grad()
def _put(parameter: nn.Parameter, name: str, load: Callable[[], Tensor]) -> torch.Size | None:
    """Give a parameter its value, or its part of it; return the value's shape where it is another one.

    Of what has more than two dimensions, such as fused experts, one row is in memory at a time where the loader has ``rows``.
    """
    shape = torch.Size(whole_shape(parameter))
    if parameter.dim() > 2 and hasattr(load, "rows"):
        found = torch.Size(load.shape)  # type: ignore[attr-defined]
        if found != shape:
            return found
        first = part_of(parameter)[0] * len(parameter)
        for row in range(len(parameter)):
            value = load_rows(load, first + row, first + row + 1)
            _refuse_whole_numbers(parameter, name, value)
            parameter[row : row + 1].copy_(value.to(parameter.device))
        return None
    value = load()
    if value.shape != shape:
        return value.shape
    _refuse_whole_numbers(parameter, name, value)
    # sent as it is and cast there: a GPU is faster at it, and gets half the bytes
    parameter.copy_(own_rows(parameter, value).to(parameter.device))
    return None


def _refuse_whole_numbers(parameter: Tensor, name: str, value: Tensor) -> None:
    """Raise ``WeightsError`` for a value that would be rounded to whole numbers, or was."""
    if parameter.is_floating_point() and not value.is_floating_point():
        raise WeightsError(
            f"{name} holds {str(value.dtype).removeprefix('torch.')} in the weights, and floating-point numbers are read: give the weights"
            " that those in fewer bits were made from"
        )


def drawn_values(model: TrainModel, seed: int) -> TensorSource:
    """Return for each parameter of a model what draws its first value from (seed, name), as ``fill_model`` does where a source lacks it."""
    shapes = {name: torch.Size(whole_shape(each)) for name, each in model.named_parameters()}
    drawn = {name: partial(value_of, model, name, shape, {}, seed) for name, shape in shapes.items()}
    return {**drawn, **_drawn_experts(model, seed)}


def _drawn_experts(model: TrainModel, seed: int) -> TensorSource:
    """Draw each tensor of fused experts by the names of the listed form, so that both begin alike."""
    layouts = {name: module.layout for name, module in model.named_modules() if isinstance(module, Experts)}
    listed: dict[str, Callable[[], Tensor]] = {
        f"{place}.{name}": partial(value_of, model, f"{place}.{name}", torch.Size(shape), {}, seed)
        for place, layout in layouts.items()
        for name, shape in layout.listed_shapes().items()
    }
    return fused_experts(listed, layouts)


def _transpose(read: Callable[[], Tensor]) -> Tensor:
    return read().T


def _misfit(name: str, found: torch.Size, wanted: torch.Size) -> str:
    return f"{name} is {tuple(found)} in the weights and {tuple(wanted)} in the model"


def value_of(model: TrainModel, name: str, shape: torch.Size, source: TensorSource, seed: int) -> Tensor:
    """Load the first value of a parameter, or draw it from (seed, name)."""
    if name in source:
        return source[name]()
    value = torch.empty(shape, dtype=torch.float32)
    generator, of_objective = tensor_generator(seed, name), split_objective_name(name)
    if model.media is not None and is_of_media(name):
        assert isinstance(model.media, MediaInputs), "encoders of a model are its MediaInputs"
        model.media.init_tensor(name.removeprefix(f"{MEDIA}."), value, generator)
    elif of_objective is None:
        model.init_tensor(name, value, generator)
    else:
        draw = getattr(objective_modules(model.head), "init_tensor", model.init_tensor)
        draw(of_objective[1], value, generator)
    return value


def _writes(parameter: Any) -> bool:
    """Return whether what this rank writes into a gathered parameter counts: it is the first of those that share it."""
    return not is_partitioned(parameter) or dist.get_rank(parameter.ds_process_group) == 0


def is_partitioned(parameter: nn.Parameter) -> bool:
    """Return whether ZeRO 3 holds only a slice of it here."""
    return hasattr(parameter, "ds_id")


@contextlib.contextmanager
def gather_parameters(parameters: list[nn.Parameter], *, write: bool = False) -> Iterator[None]:
    """Gather parameters out of ZeRO's slices inside; with ``write``, what the first rank that shares one wrote reaches the
    others. All ranks must enter."""
    partitioned = [parameter for parameter in parameters if is_partitioned(parameter)]
    if not partitioned:
        yield
        return
    import deepspeed

    with deepspeed.zero.GatheredParameters(partitioned, modifier_rank=0 if write else None):
        yield


@contextlib.contextmanager
def without_memory() -> Iterator[None]:
    """Modules built inside have parameters on the meta device; buffers and other tensors are real."""

    def to_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None or parameter.is_meta:
            return None  # kept as it is, and a tied one stays tied
        return nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)

    hook = register_module_parameter_registration_hook(to_meta)  # type: ignore[arg-type]  # torch's own says None
    try:
        yield
    finally:
        hook.remove()
