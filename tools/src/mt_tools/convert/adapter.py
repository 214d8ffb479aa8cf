"""The adapter of a run as a folder: in peft's form where it has one, else under its own names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core.errors import CheckpointError, UsageError
from mt_tools.convert.adapter_readers import base_keys, say_corrected_base, say_readers
from mt_tools.convert.card import card
from mt_tools.convert.folder import split_objective
from mt_tools.convert.source import Say, Source, build_on_meta, saved_tensors
from mt_tools.convert.writing import stage_folder, write_beside, write_json
from mt_train.adapters.folder import BESIDE, CONFIG, PORTABLE, TENSORS, WRITTEN
from mt_train.adapters.portable import fold, is_lora, largest_rank, portable_config

if TYPE_CHECKING:
    from torch import Tensor

    from mt_core.adapters.base import Adapter, PeftForm


def export_adapter(source: Source, out: Path, say: Say, *, portable: bool = True) -> str:
    """Write the folder, whole or not at all; returns what it is called in it.

    ``portable`` gives all layers of a LoRA one rank and a factor of 1, since readers other than peft have one for all.

    Raises ``UsageError`` for a run that trained all of its model.
    """

    from mt_core.adapters import adapted_layers
    from mt_train.assemble.injection import inject
    from mt_train.assemble.model import trained_names
    from mt_train.checkpoint.tensors import write_tensors
    from mt_train.engine.meta import on_meta

    assert source.checkpoint is not None, "a run has one"
    model = build_on_meta(source.parts)
    with on_meta():
        adapter = inject(source.parts, model, checkpoint=source.checkpoint)
    kept = set(model.kept_names())
    names = {name for name, _ in model.named_parameters()} - kept
    saved = set(adapter.saved_state(model)) | trained_names(source.parts.config.train, model, adapter)
    saved |= kept if model.steps else set()
    if saved >= names:
        raise UsageError(
            f"{source.path} trained all of its model, which is no adapter; mt-convert {source.path} FOLDER writes it"
        )
    found = saved_tensors(source)
    if missing := sorted(saved - set(found)):
        raise CheckpointError(f"{source.checkpoint} lacks {', '.join(missing)}; use another checkpoint")
    of_objective: Mapping[str, Any] = {}
    if source.parts.objective_component.head == "language":  # an answer does not need it, and peft has no place for it
        own, of_objective = split_objective({name: found[name] for name in saved})
        saved = set(own)
    form = _form(adapter.peft_form(model), saved, source, say)
    lora = form is not None and is_lora(form)
    rank = largest_rank(form) if form is not None and lora and portable else None
    with stage_folder(out) as stage:
        beside = frozenset[str]() if form is None else form.beside
        tensors = _tensors({name: found[name]() for name in sorted(saved - beside)}, form, rank)
        write_tensors(stage / TENSORS[0], tensors)
        dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
        if beside:
            write_tensors(stage / BESIDE, {name: found[name]() for name in sorted(beside)})
        write_beside(stage, of_objective)
        _write_configs(source, stage, adapter, form, rank)
        library = "peft" if form is not None else "mt-core"
        (stage / "README.md").write_text(card(source, out.name, dtype, library=library), encoding="utf-8")
    if form is not None:
        transposed = any(layer.is_transposed for _, layer in adapted_layers(model))
        say_readers(source, out, form, rank, say, transposed=transposed)
    say_corrected_base(source, say)
    return "own names" if form is None else str(form.config["peft_type"])


def _form(form: PeftForm | None, saved: set[str], source: Source, say: Say) -> PeftForm | None:
    """The form, if all that was trained has a place in it."""
    name = source.parts.config.adapter.name
    if form is None:
        component = source.parts.offers["adapter"].component
        hint = "; --as-lora writes what it changes as a LoRA" * getattr(component, "mergeable", False)
        say(f"notice: peft has no form for {name}; it is written under its own names, and read here alone{hint}")
    elif more := sorted(saved - set(form.names) - form.beside):
        say(
            f"notice: the run has also trained {', '.join(more[:4])}, for which peft's form has no place; all is written under"
            " its own names, and read here alone"
        )
        return None
    return form


def _tensors(found: Mapping[str, Tensor], form: PeftForm | None, rank: int | None) -> dict[str, Tensor]:
    """Return the tensors by the names of the file; of the portable form's ``rank``, where there is one."""
    if form is None:
        return dict(found)
    named = {form.names[name]: each.reshape(form.shapes.get(name, each.shape)) for name, each in found.items()}
    return named if rank is None else {name: fold(form, name, each, rank) for name, each in named.items()}


def _write_configs(source: Source, stage: Path, adapter: Adapter, form: PeftForm | None, rank: int | None) -> None:
    """``adapter_config.json``, and beside peft's what it has no keys for: it warns of keys that it does not know."""
    written = _metadata(source, adapter)
    base = base_keys(source)
    if form is None:
        write_json(stage / CONFIG, {**base, "mt_adapter": written})
        return
    config = form.config if rank is None else portable_config(form.config, rank)
    write_json(stage / CONFIG, {**base, "task_type": "CAUSAL_LM", "inference_mode": True, **config})
    write_json(stage / WRITTEN, written if rank is None else {**written, PORTABLE: True})


def _metadata(source: Source, adapter: Adapter) -> dict[str, Any]:
    """Return what tells an adapter from others: who trains it, with which options, over which weights."""
    from mt_tools.convert.overlay import base_hashes
    from mt_train.checkpoint.manifest import read_manifest

    assert source.checkpoint is not None, "a run has one"
    parts = source.parts
    plugin, slot = parts.offers["adapter"].plugin, parts.config.adapter
    manifest = read_manifest(source.checkpoint)
    options = slot.options.model_dump(mode="json")
    head = {"name": slot.name, "plugin": plugin.distribution, "version": plugin.version}
    return {
        **head,
        "options": options,
        "plan": dict(adapter.plan),
        "base": base_hashes(source),
        "step": manifest["step"],
    }
