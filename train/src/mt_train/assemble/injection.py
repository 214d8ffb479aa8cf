"""The way of an adapter into a model: prepared, injected, and every parameter of its own with a value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import nn

from mt_core.adapters.base import Adapter, Probe
from mt_core.errors import ComponentError, ConfigError, Fault, UsageError, WeightsError
from mt_core.nn import TrainModel, sharing_of, tensor_generator
from mt_train.adapters.folder import CONFIG, AdapterFolder
from mt_train.assemble.base_files import first_adapter
from mt_train.assemble.parts import Parts
from mt_train.assemble.weights import adapter_weights, is_stated
from mt_train.checkpoint.manifest import read_manifest
from mt_train.engine.build import TensorSource, fill_model, gather_parameters, is_partitioned, stored_layers
from mt_train.engine.processes import Process

MakeProbe = Callable[[], Probe]


def inject(
    parts: Parts, model: TrainModel, *, checkpoint: Path | None = None, probe: MakeProbe | None = None
) -> Adapter:
    """Put the run's adapter into the model and return it; its own parameters have no values yet, the base's have.

    ``probe`` is for adapters that look at data first; without one they keep what their config says, as a plan on paper does.
    """
    adapter = parts.adapter()
    _gradients_last(parts, adapter)
    folder = first_adapter(parts) if checkpoint is None else None
    if checkpoint is not None:
        adapter.plan = read_manifest(checkpoint).get("adapter", {})
    elif folder is not None:
        adapter.plan = folder.written.get("plan", {})
    elif probe is not None and type(adapter).prepare is not Adapter.prepare:
        adapter.prepare(model, probe())
    adapter.has_values = checkpoint is not None or folder is not None
    if folder is None:
        adapter.inject(model)
    else:
        _inject_read(parts, model, adapter, folder)
    return adapter


def _inject_read(parts: Parts, model: TrainModel, adapter: Adapter, folder: AdapterFolder) -> None:
    """Inject what a folder describes; a refusal names the folder where the options are its own, and nobody typed them."""
    folder.check_places(model)
    try:
        adapter.inject(model)
    except UsageError as error:
        if not is_stated(folder, parts):
            raise
        raise WeightsError(f"{folder.path / CONFIG} cannot be an adapter of this model: {error}") from error


def _gradients_last(parts: Parts, adapter: Adapter) -> None:
    """Refuse one that looks at gradients beside an optimizer that drops each of them as it arrives."""
    if type(adapter).after_backward is Adapter.after_backward:
        return
    if parts.optimizer_component.form == "fused":
        name, optimizer = parts.config.adapter.name, parts.config.optimizer.name
        problem = (
            f"{optimizer} updates each weight as its gradient arrives, and adapter {name} needs all of them at once."
        )
        raise ConfigError([Fault(key="optimizer", problem=problem, fix=f"Take another one with {name}, e.g. adamw.")])


def start(
    parts: Parts,
    model: TrainModel,
    adapter: Adapter,
    base: list[str],
    *,
    process: Process,
    checkpoint: Path | None = None,
) -> None:
    """Give what the adapter has brought its values: those of the checkpoint, or of what the run trains on from, else first ones.

    ``base`` are the names that the model had before it. Raises ``WeightsError`` where some values of a module are given and
    others not, ``ComponentError`` for a module that cannot begin.
    """
    known = set(base)
    own = [name for name, _ in model.named_parameters() if name not in known]
    source = adapter_weights(parts, model, adapter, base, own, checkpoint)
    fill_model(model, source, seed=parts.config.train.seed, process=process, only=set(source))
    if checkpoint is None:
        _initialise(model, set(own), source, parts.config.train.seed, process)
    for _, layer in stored_layers(model):
        layer.original = None


def _initialise(model: nn.Module, own: set[str], source: TensorSource, seed: int, process: Process) -> None:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    fresh = {key for key, name in names.items() if name in own and name not in source}
    for name, module in model.named_modules():
        here = list(module.parameters(recurse=False))
        if not any(id(parameter) in fresh for parameter in here) or any(parameter.is_meta for parameter in here):
            continue
        if given := sorted(names[id(each)] for each in here if names[id(each)] in source):
            raise WeightsError(
                f"what the run trains on from has {', '.join(given)}, and not the rest of {name}; give all or none of it"
            )
        if not hasattr(module, "initialise"):
            raise ComponentError(
                f"{type(module).__name__} at {name} has parameters of the adapter and no initialise(generator) to begin them with"
            )
        for parameter in here:
            if id(parameter) in fresh and (shared := sharing_of(parameter)) is not None:
                shared.fill(parameter.data, tensor_generator(seed, f"shared:{shared.key}"))
                fresh.discard(id(parameter))
        with gather_parameters(here, write=True):
            module.initialise(tensor_generator(seed, name))
        assert not any(is_partitioned(each) for each in here if id(each) in fresh), (
            "own parameters are whole until the engine"
        )
