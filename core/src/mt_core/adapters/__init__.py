"""What adapters are made of beside ``mt_core.Adapter`` and their configs; taking a name from here imports torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_PUBLIC = {
    "LinearAdapter": "mt_core.adapters.linear",
    "LoraLinear": "mt_core.adapters.lora",
    "LowRankLinear": "mt_core.adapters.lora",
    "PeftForm": "mt_core.adapters.peft",
    "Place": "mt_core.adapters.linear",
    "SeveralAdapters": "mt_core.adapters.several",
    "adapted_layers": "mt_core.adapters.linear",
    "device_of": "mt_core.adapters.linear",
    "linear_layers": "mt_core.adapters.targets",
    "lora_form": "mt_core.adapters.peft",
    "lora_options": "mt_core.adapters.peft",
    "low_rank_options": "mt_core.adapters.peft",
    "rank_keys": "mt_core.adapters.peft",
    "target_keys": "mt_core.adapters.peft",
    "targets_option": "mt_core.adapters.peft",
    "tensor_names": "mt_core.adapters.peft",
    "typed_form": "mt_core.adapters.peft",
    "merge": "mt_core.adapters.linear",
    "names": "mt_core.adapters.config",
    "read_base": "mt_core.adapters.linear",
    "write_base": "mt_core.adapters.linear",
    "require_named": "mt_core.adapters.targets",
    "targets_of": "mt_core.adapters.targets",
    "uniform": "mt_core.adapters.lora",
    "unmerge": "mt_core.adapters.linear",
}

__all__ = [
    "LinearAdapter",
    "LoraLinear",
    "LowRankLinear",
    "PeftForm",
    "Place",
    "SeveralAdapters",
    "adapted_layers",
    "device_of",
    "linear_layers",
    "lora_form",
    "lora_options",
    "low_rank_options",
    "merge",
    "names",
    "rank_keys",
    "read_base",
    "require_named",
    "target_keys",
    "targets_of",
    "targets_option",
    "tensor_names",
    "typed_form",
    "uniform",
    "unmerge",
    "write_base",
]

if TYPE_CHECKING:
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
        PeftForm,
        lora_form,
        lora_options,
        low_rank_options,
        rank_keys,
        target_keys,
        targets_option,
        tensor_names,
        typed_form,
    )
    from mt_core.adapters.several import SeveralAdapters
    from mt_core.adapters.targets import linear_layers, require_named, targets_of


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'mt_core.adapters' has no public name {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_PUBLIC[name]), name)
