"""The model of a run with an adapter over weights that another model has in memory: no weight of the base is there twice.

The model that learns has an adapter, too, and leaves its base as it is. What is built here has other modules and the same parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from mt_core.adapters import adapted_layers
from mt_core.errors import UsageError, WeightsError, did_you_mean
from mt_core.nn import AdaptedLinear, StoredLinear, TrainModel
from mt_core.nn.objective import split_objective_name
from mt_train.assemble.base_files import check_base_of
from mt_train.assemble.data import build_tokenizer
from mt_train.assemble.discovery import discover_plugins
from mt_train.assemble.load import end_tokens_of
from mt_train.assemble.media import media_reader, run_template
from mt_train.assemble.parts import Parts
from mt_train.assemble.run_file import run_config
from mt_train.checkpoint.store import find, verify
from mt_train.engine.meta import exchange, on_meta
from mt_train.engine.plan import Plan
from mt_train.generation.loaded_model import LoadedModel
from mt_train.plugins.resolve import resolve
from mt_train.plugins.saved_adapter import SavedAdapter, find_saved

SAME, ROUNDED = 1e-4, 4e-3
"""Largest difference of a weight from another one, as a share of its norm, that sums in another order can make, and bf16 (8 bits)."""


def load_over(parts: Parts, live: TrainModel, plan: Plan, run: Path) -> LoadedModel:
    """Load the last checkpoint of ``run``, whose adapter then stands over the base of ``live``, the model that ``parts`` describe.

    Raises ``UsageError`` where the layout or what is trained leaves no such base, ``WeightsError`` for an adapter of other weights.
    """
    _refuse_layout(plan)
    checkpoint, host = find(run), discover_plugins()
    verify(checkpoint)
    own = Parts.of(resolve(run_config(checkpoint), host))
    saved = find_saved(str(checkpoint), host)
    _refuse_other_model(parts, own, run)
    if saved.folder.written["base"]:
        check_base_of(saved.folder, parts)
    model = _build(own, saved, live)
    tokenizer, options = build_tokenizer(own), own.config.model.options
    eos_ids = end_tokens_of(own, tokenizer)
    return LoadedModel(
        model,
        tokenizer,
        options.max_seq_len,
        eos_ids,
        run_template(own, tokenizer),
        media_reader(own),
        vocabulary=options.vocab_size,
    )


def _refuse_layout(plan: Plan) -> None:
    if plan.forward_alone:
        return
    why = {
        "at ZeRO 3 it has a slice of each": plan.zero_stage == 3,
        "in a pipeline it has those of some layers": plan.pipeline > 1,
        "it has only a part of each row (parallel.sequence)": plan.sequence > 1,
        "it has only a part of the experts (parallel.expert)": plan.expert > 1,
    }
    cause = next(each for each, holds in why.items() if holds)
    raise UsageError(
        f"an adapter runs over the weights of the run where each rank has all of them, and {cause}; train with"
        " --parallel.zero-stage 2 or less and without dividing layers or rows"
    )


def _refuse_other_model(parts: Parts, own: Parts, run: Path) -> None:
    """Raise ``UsageError`` for a run of another shape, and for weights that this run has rewritten."""
    if parts.adapter_component.rewrites_base:
        raise UsageError(
            f"this run's adapter {parts.config.adapter.name} rewrites the weights under it, and {run} was trained over them as they were;"
            " train one that leaves its base as it is (--adapter lora)"
        )
    ours, theirs = parts.config.model, own.config.model
    if ours.name != theirs.name:
        raise UsageError(f"{run} is a run of --model {theirs.name}, and this one of {ours.name}")
    here, there = ours.options.model_dump(), theirs.options.model_dump()
    if other := [name for name in here if here[name] != there.get(name)]:
        name = other[0]
        raise UsageError(f"{run} has --model.{name.replace('_', '-')} {there.get(name)}, and this run {here[name]}")


@torch.no_grad()
def _build(own: Parts, saved: SavedAdapter, live: TrainModel) -> TrainModel:
    """Build the model of ``own`` over the parameters of ``live``. Raises ``UsageError`` where these are trained."""
    base = _base_of(live)
    device, dtype = next((each.device, each.dtype) for each in base.values())
    with on_meta():
        model = own.model()
    _share(model, live, base)
    names = {name for name, _ in model.named_parameters()}
    adapter = saved.build()
    saved.folder.check_places(model)
    adapter.inject(model)
    found = saved.tensors(adapter, model)
    if rewritten := sorted(found.keys() & base.keys()):
        raise UsageError(
            f"{saved.folder.path} has weights of the model itself, such as {rewritten[0]}: its run has trained or rewritten them, and here"
            " they are those of the model that learns"
        )
    _put_values(model, found, names - base.keys(), device, dtype)
    _refuse_other_weights(saved, base, model)
    return model.eval()


def _base_of(live: TrainModel) -> dict[str, nn.Parameter]:
    """Return the parameters under the adapter, by name."""
    brought = {id(each) for _, layer in adapted_layers(live) for _, each in layer.own_parameters()}
    base = {
        name: each
        for name, each in live.named_parameters(remove_duplicate=False)
        if id(each) not in brought and split_objective_name(name) is None
    }
    if trained := [name for name, each in base.items() if each.requires_grad]:
        raise UsageError(
            f"this run trains {trained[0]}"
            + (f" and {len(trained) - 1} more weights" if len(trained) > 1 else "")
            + " of the model"
            " itself, and an adapter over them would score otherwise after each step; train an adapter alone (--adapter lora)"
        )
    return base


def _share(model: TrainModel, live: TrainModel, base: Mapping[str, nn.Parameter]) -> None:
    """Put the parameters and buffers of ``live`` into a model without memory; layers that store their weights otherwise go along whole."""
    for name, module in list(live.named_modules()):
        stands_for = module.base if isinstance(module, AdaptedLinear) else module
        if isinstance(stands_for, StoredLinear):
            model.set_submodule(name, stands_for)
    exchange(model, [(each, base[name]) for name, each in model.named_parameters() if name in base and each.is_meta])
    for name, module in model.named_modules():
        for key, buffer in list(module.named_buffers(recurse=False)):
            if buffer.is_meta:
                setattr(module, key, live.get_submodule(name).get_buffer(key))


def _put_values(
    model: TrainModel, found: Mapping[str, object], beside: set[str], device: torch.device, dtype: torch.dtype
) -> None:
    """Fill what the adapter has brought, and what the objective trains ``beside`` the model, which has no memory yet."""
    own = dict(model.named_parameters())
    empty = [(own[name], nn.Parameter(torch.empty_like(own[name], device=device, dtype=dtype))) for name in beside]
    exchange(model, empty)
    own = dict(model.named_parameters())
    if wrong := sorted(name for name in beside if name not in found):
        raise WeightsError(
            f"the checkpoint has no {wrong[0]}{did_you_mean(wrong[0], list(found))}; it is of another model"
        )
    for name, load in found.items():
        assert callable(load), "loaders give tensors"
        own[name].copy_(load())
    for name in found:
        own[name].requires_grad_(False)


def _refuse_other_weights(saved: SavedAdapter, base: Mapping[str, nn.Parameter], model: TrainModel) -> None:
    """Raise ``WeightsError`` for a whole checkpoint with other weights under its adapter: it has no hashes of their files."""
    if saved.folder.written["base"]:
        return
    theirs = saved.folder.tensors()
    for name in (f"{place}.weight" for place, _ in adapted_layers(model)):
        if name not in theirs or name not in base:
            continue
        here, there = base[name].float().cpu(), theirs[name]().float()
        most = SAME if base[name].dtype == torch.float32 else ROUNDED
        if here.shape != there.shape or bool((here - there).norm() > most * there.norm()):
            raise WeightsError(
                f"{saved.folder.path} was trained over other weights than these: {name} is another one in its checkpoint. Give this run"
                " the --model.weights (or --train.seed, where they are drawn) of that one"
            )
