"""Base and adapter as one Hugging Face folder, written a tensor at a time, and what it says otherwise than the two did.

What is compared is what was written: the folder is read back before it gets its name. One model is in memory at a time.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from mt_core.adapters import adapted_layers
from mt_core.adapters.base import Adapter
from mt_core.errors import UsageError, WeightsError
from mt_core.nn import TrainModel
from mt_core.plugins.host import PluginHost
from mt_core.weights import Loaders
from mt_tools.convert.adapter_readers import corrects_base
from mt_tools.convert.difference import Difference, difference, logits, refuse_beyond, sample_rows
from mt_tools.convert.folder import write_folder
from mt_tools.convert.overlay import base_hashes
from mt_tools.convert.source import Say, Source, SourceTensors, build_on_meta, open_source, saved_tensors, tensors_of
from mt_tools.convert.writing import stage_folder
from mt_train.adapters.several import SeveralAdapters
from mt_train.assemble.injection import inject
from mt_train.assemble.load import load_base, load_model
from mt_train.assemble.model import trained_names
from mt_train.assemble.parts import Parts
from mt_train.checkpoint.manifest import read_manifest
from mt_train.checkpoint.tensors import open_model
from mt_train.engine.build import stored_layers
from mt_train.engine.meta import on_meta
from mt_train.plugins.resolve import resolve

TOLERANCE, OF_QUANTIZED = 0.1, 0.5
"""Largest mean difference of logits; the base that a quantized run is merged into is another one than it ran on."""


def merge(
    sources: Sequence[tuple[Source, float]],
    out: Path,
    host: PluginHost,
    *,
    dtype: str | None,
    shard_bytes: int,
    tolerance: float | None,
    say: Say,
) -> Difference:
    """Write the folder, whole or not at all.

    Raises ``UsageError`` for adapters that cannot be merged, or not together, and ``WeightsError`` beyond ``tolerance``.
    """
    for source, _ in sources:
        refuse_unmergeable(source)
    first = sources[0][0]
    rows, text = sample_rows(first, say)
    model = _model_with_adapters(sources, say)
    scores = first.parts.objective_component.head == "own"
    before = logits(model, rows, scores=scores)
    quantized, corrects = any(not layer.merges for _, layer in stored_layers(model)), _correct_base(sources)
    if quantized and not corrects:
        del model
        gc.collect()
        sources = [(_dense_source(source, host), share) for source, share in sources]
        first, model = sources[0][0], _model_with_adapters(sources, say)
    with stage_folder(out) as stage:
        tensors = _merge(first, model, say, keep_bits=corrects, rounded=dtype is None)
        write_folder(first, stage, tensors, dtype=dtype, shard_bytes=shard_bytes, title=out.name, say=say)
        del model, tensors
        gc.collect()
        objective = first.parts.config.objective.as_raw() if scores else None
        written = open_source(str(stage), host, first.parts.offers["model"].qualified_name, objective=objective)
        than = "the quantized run" if quantized else "the run" if len(sources) == 1 else "the runs together"
        after = logits(load_model(written.parts, None, say), rows, scores=scores)
        found = replace(difference(before, after), text=text, than=than)
        most = (OF_QUANTIZED if quantized and not corrects else TOLERANCE) if tolerance is None else tolerance
        refuse_beyond(found, most, "A --dtype with more bits may come nearer")
        with (stage / "README.md").open("a", encoding="utf-8") as card:
            card.write(f"- adapter merged: {found}\n")
    return found


def refuse_unmergeable(source: Source) -> None:
    """Raises ``UsageError`` for an adapter that no weights can stand for."""
    component = source.parts.adapter_component
    if not component.mergeable:
        raise UsageError(
            f"{source.path} has the adapter {component.name}, which no weights can stand for: {component.summary}. Export it as"
            " it is"
        )


def _model_with_adapters(sources: Sequence[tuple[Source, float]], say: Say) -> TrainModel:
    """The model as the run has it, or with the adapters of several, each with its share."""
    if len(sources) == 1 and sources[0][1] == 1:
        only = sources[0][0]
        return load_model(only.parts, only.checkpoint, say, averaged=only.averaged)
    _check_same_base([source for source, _ in sources])
    first, others = sources[0][0], [source for source, _ in sources[1:]]
    assert first.checkpoint is not None, "a run has one"
    adapters = [_adapter_of(source) for source, _ in sources]
    beside = _trained_beside(first)
    _refuse_beside(first, beside, others)
    model = load_base(first.parts, first.checkpoint, say)
    found = saved_tensors(first)
    with torch.no_grad():
        for name in beside:
            model.get_parameter(name).copy_(found[name]())
    several = SeveralAdapters(model)
    for number, ((source, _), adapter) in enumerate(zip(sources, adapters, strict=True), 1):
        several.add(f"{number}: {source.path}", *adapter)
    several.use({name: share for name, (_, share) in zip(several.names, sources, strict=True)})
    return model


def _trained_beside(source: Source) -> list[str]:
    """Return what a run has trained beside its adapter without being asked: a head of the objective's, projectors of media."""
    model = build_on_meta(source.parts)
    with on_meta():
        adapter = inject(source.parts, model, checkpoint=source.checkpoint)
    config, head = source.parts.config, source.parts.objective_component.head
    return sorted(trained_names(config.train, model, adapter, head=head) - {*adapter.trainable_parameters(model)})


def _refuse_beside(first: Source, of_first: Sequence[str], others: Sequence[Source]) -> None:
    """Raise ``UsageError`` for runs other than the first with more than an adapter: one model has one head and one projector."""
    for other in others:
        if beside := _trained_beside(other):
            names = ", ".join(beside[:4])
            fix = "merge each by itself" if of_first else f"name it first: --run {other.path} --run {first.path}"
            raise UsageError(
                f"{other.path} has trained {names} beside its adapter, which is no sum: of several runs only the first may have such parts;"
                f" {fix}"
            )


def _adapter_of(source: Source) -> tuple[Adapter, Callable[[TrainModel], Loaders]]:
    """The adapter of a run, and its values in its checkpoint."""
    assert source.checkpoint is not None, "a run has one"
    found, enabled = saved_tensors(source), source.parts.config.train.enable
    if enabled:
        raise UsageError(f"{source.path} has also trained {list(enabled)}; only adapters can be added up")
    adapter = source.parts.adapter()
    adapter.plan = read_manifest(source.checkpoint).get("adapter", {})

    def values(model: TrainModel) -> Loaders:
        refuse_changed(source, model, {name: found[name]() for name in model.kept_names() if name in found})
        return {name: found[name] for name in adapter.saved_state(model) if name in found}

    return adapter, values


def refuse_changed(source: Source, base: TrainModel, kept: Mapping[str, Tensor]) -> None:
    """Raise ``UsageError`` where a model has changed what it keeps since it was its base: an adapter alone does not say so."""
    own = dict(base.named_parameters())
    if changed := [name for name, value in kept.items() if not torch.equal(own[name].cpu(), value.cpu())]:
        raise UsageError(
            f"the model of {source.path} has changed {', '.join(changed[:4])} itself while its adapter was trained, which an adapter has no"
            f" place for; mt-export --run {source.path} --merge writes the whole model"
        )


def _check_same_base(sources: Sequence[Source]) -> None:
    """Compare bases by the hashes of the files that they were read from, else by their values. Raises ``WeightsError``."""
    first, others = sources[0], sources[1:]
    for other in others:
        hashes = [set(base_hashes(each).values()) for each in (first, other)]
        if not (hashes[0] == hashes[1] if all(hashes) else _have_equal_values(first, other)):
            raise WeightsError(
                f"{first.path} and {other.path} are adapters of different weights, so that they cannot be added up; merge each"
                " by itself"
            )


def _have_equal_values(one: Source, other: Source) -> bool:
    """Return whether what two checkpoints have of the model itself is the same."""
    found = [open_model(each.checkpoint / "model") for each in (one, other) if each.checkpoint is not None]
    names = [name for name, _ in build_on_meta(one.parts).named_parameters()]
    return all(
        name in found[0] and name in found[1] and torch.equal(found[0][name](), found[1][name]()) for name in names
    )


def _dense_source(source: Source, host: PluginHost) -> Source:
    """Return the same run over the weights that were quantized."""
    raw = {**source.parts.config.as_raw(), "quantizer": {"name": "none"}}
    return replace(source, parts=Parts.of(resolve(raw, host)))


def _correct_base(sources: Sequence[tuple[Source, float]]) -> bool:
    """Return whether an adapter corrects a quantized base. Raises ``UsageError`` where another one is for a base in other bits."""
    if not any(corrects_base(source) for source, _ in sources):
        return False
    stored = {json.dumps(source.parts.config.quantizer.as_raw(), sort_keys=True): source for source, _ in sources}
    if len(stored) > 1:
        listed = "; ".join(f"{source.path} over {kind}" for kind, source in stored.items())
        raise UsageError(
            f"an adapter that corrects its quantized base is for that base alone, and these are over several: {listed}; merge each on its"
            " own"
        )
    return True


def _merge(source: Source, model: TrainModel, say: Say, *, keep_bits: bool, rounded: bool) -> SourceTensors:
    """One loader a parameter of the model: what it was, or where there is an adapter, what both are together.

    With ``keep_bits`` a layer without an adapter has the weight that is left of it in few bits. Merged weights are ``rounded`` to the
    dtype of the base; where another one is asked for they stay in fp32, so that the writer alone rounds them.
    """
    tensors = tensors_of(source, say, adapted=True)
    found = tensors.loaders
    loaders = dict(found)

    def put(key: str, value: Callable[[], Tensor | None], *, transposed: bool) -> None:
        like = found[key] if rounded or key in tensors.kept else None
        loaders[key] = partial(_round, key, value, like, transposed=transposed)

    for name, stored in stored_layers(model) if keep_bits else ():
        put(f"{name}.weight", stored.dense_weight, transposed=stored.is_transposed)
    for name, layer in adapted_layers(model):
        for each, value in (("weight", layer.merged_weight), ("bias", layer.merged_bias)):
            key = f"{name}.{each}"
            if key in found:
                put(key, value, transposed=each == "weight" and layer.is_transposed)
            elif value() is not None:
                raise UsageError(
                    f"the adapter gives {name} a {each}, for which the family {source.parts.config.model.name} has no place"
                    " in its folders; export the adapter as it is, without --merge"
                )
    return replace(tensors, loaders=loaders)


@torch.no_grad()
def _round(
    name: str, value: Callable[[], Tensor | None], like: Callable[[], Tensor] | None, *, transposed: bool = False
) -> Tensor:
    """Round to the dtype that the base has, if its loader is given. Raises ``WeightsError`` for a value that it cannot hold."""
    merged = value()
    assert merged is not None, "the base has this parameter"
    merged = merged.T.contiguous() if transposed else merged
    dtype = merged.dtype if like is None else like().dtype
    rounded = merged.to("cpu", dtype)
    if bool((rounded.isinf() & merged.isfinite().to(rounded.device)).any()):
        raise WeightsError(f"{name} has values beyond {dtype} once it is merged; choose --dtype bf16 or fp32")
    return rounded
