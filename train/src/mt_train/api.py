"""Commands as Python functions: the same errors, no ``sys.exit``, and nothing left behind in the process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mt_core.errors import ConfigError, UsageError
from mt_core.files import is_remote
from mt_core.plugins.host import PluginHost
from mt_core.tracking.logs import notice
from mt_train.assemble.choice import chosen_checkpoints
from mt_train.assemble.directory import path_from, working_in_directory
from mt_train.assemble.discovery import discover_plugins
from mt_train.assemble.parts import Parts
from mt_train.assemble.remote_run import fetch_run
from mt_train.assemble.resume import resolve_resumed
from mt_train.assemble.run_file import run_config
from mt_train.checkpoint.completion import describe_finished, is_finished
from mt_train.checkpoint.fields import LARGEST
from mt_train.checkpoint.folder import next_run_folder
from mt_train.config import arguments
from mt_train.config.layers import Layer, Layers
from mt_train.config.names import expand
from mt_train.config.plain import check_plain
from mt_train.config.ranks import MOST_PROCESSES
from mt_train.config.run import RunConfig
from mt_train.engine.plan import check_layout
from mt_train.plugins.modules import check_given
from mt_train.plugins.recipes import read_sources
from mt_train.plugins.resolve import Resolved, resolve

if TYPE_CHECKING:
    from mt_train.adapters.several import SeveralAdapters
    from mt_train.assemble.outcome import Outcome
    from mt_train.data.online import Policy
    from mt_train.generation.loaded_model import LoadedModel

Config = RunConfig | Mapping[str, Any] | str | Path
"""A run's config: resolved, as nested mappings, or a YAML or JSON file."""


def load_config(
    source: Config, *, recipe: str | None = None, plugins: Iterable[ModuleType] = (), **changes: Any
) -> RunConfig:
    """Return the resolved config of a mapping or file; ``changes`` are slots and sections that override it (``train={"steps": 9}``).

    ``recipe`` names the one whose values count where the config has none; ``plugins`` are modules that are plugins beside the installed
    ones. Raises ``ConfigError`` with every fault. Imports no torch.
    """
    host = _host("load_config", plugins)
    layers = _layers("load_config", "source", source, recipe, host)
    check_plain(changes)
    return _resolve([*layers, Layer("changes", changes)], host).config


def check_config(
    source: Config, *, processes: int = 1, recipe: str | None = None, plugins: Iterable[ModuleType] = ()
) -> RunConfig:
    """Return the resolved config, if its layout can run on so many processes. It checks everything that needs no training.

    ``recipe`` and ``plugins`` are as in ``load_config``. Raises ``ConfigError`` with every fault. Imports no torch.
    """
    world = arguments.check_whole_number("check_config", "processes", processes, 1, MOST_PROCESSES)
    host = _host("check_config", plugins)
    resolved = _resolve(_layers("check_config", "source", source, recipe, host), host)
    check_layout(resolved.config, world=world, offers=resolved.offers.values())
    return resolved.config


def train(
    config: Config | None = None,
    *,
    output: str | Path | None = "auto",
    overwrite: bool = False,
    resume: str | Path | None = None,
    recipe: str | None = None,
    plugins: Iterable[ModuleType] = (),
) -> Outcome:
    """Train, as ``mt-train`` does in one process (or as one of those that ``torchrun`` started).

    ``output`` is the run's folder, ``auto`` for ``runs/<model>-<size>-NNN``, or ``None`` to write no file. ``resume`` is a
    run or checkpoint to go on from (one behind an address is fetched into ``output``, or ``runs/NAME``); ``config`` then holds
    only what changes, and until it returns the process works in the directory in which the run began. While it runs, the first Ctrl-C,
    SIGTERM or SIGUSR1 saves and returns, with its name in ``Outcome.stopped``. ``recipe`` names the one whose values count where
    ``config`` has none; ``plugins`` are modules that are plugins beside the installed ones. Raises ``MtError``, as the commands report it.
    """
    from mt_train.assemble.run import RunOptions, run

    host = _host("train", plugins)
    layers = _layers("train", "config", {} if config is None else config, recipe, host)
    arguments.flag("train", "overwrite", overwrite)
    if output is not None:
        output = arguments.path("train", "output", output, "the path of a folder, 'auto', or None to write no file")
    if resume is not None:
        resume = arguments.path("train", "resume", resume, "the path of a run or of one of its checkpoints, or None")
        if overwrite:
            raise UsageError("train(): overwrite replaces a run, and resume goes on with it; leave one of them out")
        if recipe is not None:
            raise UsageError("train(): a run that is resumed keeps its own config; leave recipe out")
        if is_remote(resume):
            resume, output = str(fetch_run(resume, None if output in ("auto", None) else Path(expand(output)))), "auto"
        if output != "auto":
            raise UsageError("resume goes on in the run's own folder; leave out output")
        with working_in_directory(asked := Path(expand(resume))) as here:
            resolved, checkpoint = resolve_resumed(Layers.of(layers, host.kinds).raw, path_from(here, asked), host)
            folder = checkpoint.parent.parent
            if is_finished(folder, resolved.config, checkpoint):
                completed = describe_finished(folder, checkpoint)
                raise UsageError(f"{completed}; give more steps, as in config={{'train': {{'steps': 800}}}}")
            return run(Parts.of(resolved), RunOptions(output=folder, checkpoint=checkpoint))
    if config is None and recipe is None:
        raise UsageError("train() needs a config, a recipe, or a run to resume")
    resolved = _resolve(layers, host)
    return run(Parts.of(resolved), RunOptions(output=_folder(output, resolved), overwrite=overwrite))


def load_run(
    run: str | Path,
    *,
    checkpoint: str | int = "last",
    averaged: str | None = None,
    dtype: str = "auto",
    plugins: Iterable[ModuleType] = (),
) -> LoadedModel:
    """Load the trained model of a run with its tokenizer, on the GPU if there is one.

    ``checkpoint`` is ``last``, ``best`` or a step; ``averaged`` names the callback whose average is taken; ``dtype`` is the precision of
    the weights: ``fp32``, ``bf16``, ``fp16``, or ``auto``, that of the run on a GPU and fp32 on a CPU; ``plugins`` are the modules that
    ``train`` was given.

    Raises ``CheckpointError`` where there is none, or it is damaged.
    """
    from mt_train.assemble.load import load

    precision = arguments.dtype("load_run", dtype)
    folder = Path(expand(arguments.path("load_run", "run", run)))
    is_step = type(checkpoint) is int and 0 <= checkpoint <= LARGEST
    which = str(checkpoint) if is_step else arguments.text("load_run", "checkpoint", checkpoint, _WHICH)
    if which == "all" or "," in which:
        raise arguments.refuse("load_run", "checkpoint", checkpoint, _WHICH)
    if averaged is not None:
        arguments.text("load_run", "averaged", averaged, "the name of a callback of the run, such as 'ema', or None")
    found = chosen_checkpoints(folder, which)[-1]
    host = _host("load_run", plugins)
    resolved = resolve(run_config(found), host)
    return load(Parts.of(resolved), found, notice, averaged=averaged, dtype=precision)


def load_weights(
    model: str | Path | None,
    folder: str | Path | None = None,
    *,
    objective: str | None = None,
    dtype: str = "auto",
    quantizer: str | Mapping[str, Any] | None = None,
    plugins: Iterable[ModuleType] = (),
) -> LoadedModel:
    """Pretrained weights with the tokenizer beside them, on the GPU where there is one: ``load_weights(folder)``, whose ``config.json``
    names the family, or ``load_weights(model, folder)`` with the family to read them.

    ``objective`` names the one whose modules the weights have, such as ``reward``; ``dtype`` is their precision, as in ``load_run``,
    where ``auto`` on a GPU is the one that ``config.json`` names; ``quantizer`` stores the linear layers in fewer bits, such as ``nf4``,
    or ``{"name": "nf4", "double": False}``; ``plugins`` are as in ``train``. Raises ``WeightsError`` and
    ``ConfigError`` where they cannot be read.
    """
    from mt_train.assemble.load import load

    precision = arguments.dtype("load_weights", dtype)
    if folder is None:
        model, folder = None, model
    name = None if model is None else arguments.text("load_weights", "model", model, _FAMILY)
    if objective is not None:
        objective = arguments.text("load_weights", "objective", objective, "the name of an objective, or None")
    path = arguments.path("load_weights", "folder", folder)
    further: dict[str, Any] = {} if objective is None else {"objective": objective}
    if quantizer is not None:
        further["quantizer"] = arguments.component("load_weights", "quantizer", quantizer)
    return load(_parts_of_weights(name, path, _host("load_weights", plugins), further), None, notice, dtype=precision)


_FAMILY = "the name of a model family, such as 'llama', or None for the one that config.json names"


def _parts_of_weights(model: str | None, weights: str, host: PluginHost, further: Mapping[str, Any]) -> Parts:
    named = {} if model is None else {"name": model}
    raw = {"model": {**named, "weights": weights}, "train": {"sequence_len": 2}, **further}  # there are no rows
    return Parts.of(resolve(raw, host, trains=False))


def load_adapters(
    folders: Mapping[str, str | Path],
    *,
    weights: str | Path,
    model: str | None = None,
    dtype: str = "auto",
    quantizer: str | Mapping[str, Any] | None = None,
    plugins: Iterable[ModuleType] = (),
) -> tuple[LoadedModel, SeveralAdapters]:
    """Load pretrained weights with several adapters by name, each from a folder that peft or ``mt-export`` wrote, or from a run.

    ``model`` is the family that reads ``weights``, or their ``config.json`` names it; ``dtype``, ``quantizer`` and ``plugins`` are
    as in ``load_weights``. None counts before ``SeveralAdapters.use``.
    Raises ``WeightsError`` and ``UsageError`` for adapters of other weights, and for those that stand for more than linear layers.
    """
    from mt_train.assemble.adapter_slot import adapter_in, folder_at
    from mt_train.assemble.base_files import check_base_of

    precision = arguments.dtype("load_adapters", dtype)
    wanted = arguments.require_mapping("load_adapters", "folders", folders, "a mapping from a name to each folder")
    paths = {
        arguments.text("load_adapters", "a name of folders", name): arguments.path(
            "load_adapters", f"folders[{name!r}]", path
        )
        for name, path in wanted.items()
    }
    host = _host("load_adapters", plugins)
    family = None if model is None else arguments.text("load_adapters", "model", model, _FAMILY)
    base = arguments.path("load_adapters", "weights", weights)
    stored = {} if quantizer is None else {"quantizer": arguments.component("load_adapters", "quantizer", quantizer)}
    parts = replace(_parts_of_weights(family, base, host, stored), adapters_follow=True)
    found = {name: folder_at(Path(expand(path))) for name, path in paths.items()}
    for folder in found.values():
        check_base_of(folder, parts)
    from mt_train.adapters.several import SeveralAdapters  # here: what is not there is told before torch is imported
    from mt_train.assemble.load import load

    loaded = load(parts, None, notice, dtype=precision)
    several = SeveralAdapters(loaded.model)
    for name, folder in found.items():
        several.add(name, *adapter_in(folder, loaded.model, host))
    return loaded, several


def load_over_base(run: str | Path, policy: Policy) -> LoadedModel:
    """Load the adapter of a run on the base weights of the run of ``policy``.

    No weight is there twice. Raises ``UsageError`` where that run trains more than an adapter, or its layout divides layers, rows or
    weights, and ``WeightsError`` for an adapter of other weights. Every rank calls it.
    """
    from mt_train.assemble.policy import LivePolicy

    path = Path(expand(arguments.path("load_over_base", "run", run)))
    if not isinstance(policy, LivePolicy):
        raise UsageError(
            f"load_over_base(): policy is a {type(policy).__name__}; give the policy that a run collects answers with"
        )
    return policy.load_over_base(path)


def _host(call: str, plugins: object) -> PluginHost:
    """Return the installed plugins, and the modules that a call was given."""
    return discover_plugins(modules=check_given(call, plugins))


_WHICH = "'last', 'best' or a saved step"


def _folder(output: str | Path | None, resolved: Resolved) -> Path | None:
    if output is None:
        return None
    return next_run_folder(resolved.stem) if output == "auto" else Path(expand(str(output)))


def _layers(call: str, parameter: str, config: Config, recipe: str | None, host: PluginHost) -> list[Layer]:
    """Return what an argument says, over what its files include, over the recipe."""
    if recipe is not None and isinstance(config, RunConfig):
        raise UsageError(
            f"{call}(): {parameter} has every value already, a recipe none to add; give recipe where it is made"
        )
    text = None if recipe is None else arguments.text(call, "recipe", recipe, "the name of a recipe, or None")
    check_plain({"recipe": text})
    if isinstance(config, RunConfig):
        return [Layer(parameter, config.as_raw())]
    if isinstance(config, Mapping):
        check_plain(config)
        return [*read_sources(text, (), host), Layer(parameter, config)]
    return read_sources(text, [Path(expand(arguments.path(call, parameter, config, _CONFIG)))], host)


def _resolve(layers: Sequence[Layer], host: PluginHost) -> Resolved:
    found = Layers.of(layers, host.kinds)
    try:
        return resolve(found.raw, host, found.origins)
    except ConfigError as error:
        raise found.locate(error) from None


_CONFIG = "a config: nested mappings, a RunConfig, or the path of a YAML or JSON file"
