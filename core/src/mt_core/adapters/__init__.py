"""Building blocks of adapters, beside ``mt_core.Adapter`` and their configs; taking a name from here imports torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_MODULES = {
    "base": ("PeftForm",),
    "config": ("names",),
    "linear": ("LinearAdapter", "Place", "adapted_layers", "device_of", "merge", "read_base", "unmerge", "write_base"),
    "lora": ("LoraLinear", "LowRankLinear", "uniform"),
    "peft": (
        "lora_form",
        "lora_options",
        "low_rank_options",
        "names_option",
        "patterns_option",
        "rank_keys",
        "target_keys",
        "targets_option",
        "tensor_names",
        "form_of_type",
    ),
    "several": ("SeveralAdapters",),
    "targets": ("linear_layers", "require_named", "targets_of"),
}
_PUBLIC = {name: f"mt_core.adapters.{module}" for module, names in _MODULES.items() for name in names}

__all__ = [
    "LinearAdapter",
    "LoraLinear",
    "LowRankLinear",
    "PeftForm",
    "Place",
    "SeveralAdapters",
    "adapted_layers",
    "device_of",
    "form_of_type",
    "linear_layers",
    "lora_form",
    "lora_options",
    "low_rank_options",
    "merge",
    "names",
    "names_option",
    "patterns_option",
    "rank_keys",
    "read_base",
    "require_named",
    "target_keys",
    "targets_of",
    "targets_option",
    "tensor_names",
    "uniform",
    "unmerge",
    "write_base",
]

if TYPE_CHECKING:
    from mt_core.adapters.base import PeftForm
    from mt_core.adapters.config import names
    from mt_core.adapters.linear import (
        LinearAdapter,
        Place,
        adapted_layers,
        device_of,
        merge,
        read_base,
        unmerge,
        write_base,
    )
    from mt_core.adapters.lora import LoraLinear, LowRankLinear, uniform
    from mt_core.adapters.peft import (
        form_of_type,
        lora_form,
        lora_options,
        low_rank_options,
        names_option,
        patterns_option,
        rank_keys,
        target_keys,
        targets_option,
        tensor_names,
    )
    from mt_core.adapters.several import SeveralAdapters
    from mt_core.adapters.targets import linear_layers, require_named, targets_of


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'mt_core.adapters' has no public name {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_PUBLIC[name]), name)
