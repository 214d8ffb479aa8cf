"""``model.overlay`` of a run: it has weights of the model itself, or values of the adapter alone, as another checkpoint has."""

from __future__ import annotations

from os.path import expanduser
from pathlib import Path

from mt_tools.convert.source import Source, build_on_meta
from mt_train.assemble.base_files import adapter_folder, base_files
from mt_train.assemble.expert_forms import fit_experts
from mt_train.checkpoint.manifest import read_manifest
from mt_train.checkpoint.tensors import open_overlay
from mt_train.plugins.saved_adapter import without_overlay


def base_overlay(source: Source) -> str | None:
    """Return the overlay of a run where it has weights of the model itself, which no folder of an adapter has."""
    overlay, path = source.parts.config.model.source.overlay, _path(source)
    if path is None or adapter_folder(overlay) is not None:
        return None
    names = {name for name, _ in build_on_meta(source.parts).named_parameters()}
    return overlay if names & set(fit_experts(source.parts, open_overlay(path), names)) else None


def base_hashes(source: Source) -> dict[str, str]:
    """SHA-256 of the files that a run's adapter stands on. An overlay with values of the adapter alone is none of them."""
    assert source.checkpoint is not None, "a run has one"
    found: dict[str, str] = read_manifest(source.checkpoint).get("base") or (
        base_files(source.parts) if source.weights is not None else {}
    )
    path = _path(source)
    if path is None or base_overlay(source) is not None:
        return found
    return without_overlay(found, path)


def _path(source: Source) -> Path | None:
    """Return where the overlay is; ``None`` without one, and where it is gone."""
    overlay = source.parts.config.model.source.overlay
    path = None if overlay is None else Path(expanduser(overlay))
    return path if path is not None and path.exists() else None
