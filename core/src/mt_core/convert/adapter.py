"""The adapter of a run as a folder: in peft's form where it has one, else under its own names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core.adapters.folder import BESIDE, CONFIG, TENSORS, WRITTEN
from mt_core.convert.source import Say, Source, drawn
from mt_core.errors import CheckpointError, UsageError
from mt_core.weights import staged, write_json

if TYPE_CHECKING:
    from torch import Tensor

    from mt_core.adapters.base import Adapter
    from mt_core.adapters.peft import PeftForm


def export_adapter(source: Source, out: Path, say: Say) -> str:
    """Write the folder, whole or not at all; returns what it is called in it.

    Raises ``UsageError`` for a run that trained all of its model.
    """
    import torch

    from mt_core.assemble.adapted import inject
    from mt_core.assemble.model import trained_names
    from mt_core.checkpoint.tensors import open_model, write_tensors

    assert source.checkpoint is not None, "a run has one"
    model = drawn(source.resolved)
    with torch.device("meta"):
        adapter = inject(source.resolved, model, checkpoint=source.checkpoint)
    names = {name for name, _ in model.named_parameters()}
    saved = set(adapter.saved_state(model)) | trained_names(source.resolved, model, adapter)
    if saved >= names:
        raise UsageError(
            f"{source.path} trained all of its model, which is no adapter; mt-convert {source.path} FOLDER writes it"
        )
    form = _form(adapter.peft_form(model), saved, source, say)
    found = open_model(source.checkpoint / "model")
    if missing := sorted(saved - set(found)):
        raise CheckpointError(f"{source.checkpoint} lacks {', '.join(missing)}; use another checkpoint")
    with staged(out) as stage:
        beside = frozenset[str]() if form is None else form.beside
        write_tensors(stage / TENSORS[0], _tensors({name: found[name]() for name in sorted(saved - beside)}, form))
        if beside:
            write_tensors(stage / BESIDE, {name: found[name]() for name in sorted(beside)})
        _write_configs(source, stage, adapter, form)
    return "own names" if form is None else str(form.config["peft_type"])


def _form(form: PeftForm | None, saved: set[str], source: Source, say: Say) -> PeftForm | None:
    """The form, if all that was trained has a place in it."""
    name = source.resolved.config.adapter.name
    if form is None:
        component = source.resolved.offers["adapter"].component
        hint = "; --as-lora writes what it changes as a LoRA" * getattr(component, "mergeable", False)
        say(f"notice: peft has no form for {name}; it is written under its own names, and read here alone{hint}")
    elif more := sorted(saved - set(form.names) - form.beside):
        say(
            f"notice: the run has also trained {', '.join(more[:4])}, for which peft's form has no place; all is written under"
            " its own names, and read here alone"
        )
        return None
    return form


def _tensors(found: Mapping[str, Tensor], form: PeftForm | None) -> dict[str, Tensor]:
    if form is None:
        return dict(found)
    return {form.names[name]: each.reshape(form.shapes.get(name, each.shape)) for name, each in found.items()}


def _write_configs(source: Source, stage: Path, adapter: Adapter, form: PeftForm | None) -> None:
    """``adapter_config.json``, and beside peft's what it has no keys for: it warns of keys that it does not know."""
    written = _written(source, adapter)
    base = {"base_model_name_or_path": source.started_from}
    if form is None:
        write_json(stage / CONFIG, {**base, "mt_adapter": written})
        return
    write_json(stage / CONFIG, {**base, "task_type": "CAUSAL_LM", "inference_mode": True, **form.config})
    write_json(stage / WRITTEN, written)


def _written(source: Source, adapter: Adapter) -> dict[str, Any]:
    """What tells an adapter from others: who trains it, with which options, over which weights."""
    from mt_core.assemble.weights import base_files
    from mt_core.checkpoint.manifest import read_manifest

    assert source.checkpoint is not None, "a run has one"
    resolved = source.resolved
    plugin, slot = resolved.offers["adapter"].plugin, resolved.config.adapter
    manifest = read_manifest(source.checkpoint)
    base = manifest.get("base") or (base_files(resolved) if source.weights is not None else {})
    options = slot.options.model_dump(mode="json")
    head = {"name": slot.name, "plugin": plugin.distribution, "version": plugin.version}
    return {**head, "options": options, "plan": dict(adapter.plan), "base": base, "step": manifest["step"]}
