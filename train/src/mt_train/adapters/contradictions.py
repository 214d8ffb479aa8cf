"""Differences between peft's config of an adapter and a run's adapter. Importing this imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mt_core.adapters.base import PeftForm
from mt_core.adapters.peft import value_for

_PATTERNS = {"r": "rank_pattern", "lora_alpha": "alpha_pattern", "alpha": "alpha_pattern"}
_OF_NO_OUTPUT = frozenset(
    [
        "alpha_pattern",
        "auto_mapping",
        "base_model_name_or_path",
        "corda_config",
        "ensure_weight_tying",
        "eva_config",
        "exclude_modules",
        "fan_in_fan_out",
        "feedforward_modules",
        "inference_mode",
        "init_lora_weights",
        "init_weights",
        "layers_pattern",
        "layers_to_transform",
        "lora_dropout",
        "megatron_core",
        "module_dropout",
        "mt_adapter",
        "peft_version",
        "qalora_group_size",
        "rank_dropout",
        "rank_pattern",
        "revision",
        "target_modules",
        "task_type",
    ]
)
"""Keys of its config that are about training, files or names of modules."""
_REWRITING = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Beginnings of ``init_lora_weights`` that change the base's weights."""


def contradictions(
    ours: PeftForm, theirs: Mapping[str, Any], modules: Sequence[str], here: str = "in the run"
) -> Iterator[str]:
    """Tell each key that a folder's config has otherwise than the run's adapter, of those that change an output and not only training.

    ``here`` is what to call the place of our values.
    """
    unsaid = _OF_NO_OUTPUT | ours.training
    for key, value in ours.config.items():
        if key not in unsaid | _PATTERNS.keys() and _value_or_none(theirs.get(key)) != _value_or_none(value):
            yield f"{key} is {theirs.get(key)!r} there and {value!r} {here}"
    for key, pattern in _PATTERNS.items():
        if key in ours.config:
            patterns = [each.get(pattern) if pattern in ours.config else None for each in (theirs, ours.config)]
            values = {_both(key, patterns, module, theirs, ours.config) for module in modules}
            for there, ours_is in sorted(each for each in values if each[0] != each[1]):
                yield f"{key} is {there} there and {ours_is} {here}"
    for key in sorted(theirs.keys() - ours.config.keys() - unsaid):
        if _value_or_none(theirs[key]) is not None:
            yield f"{key} is {theirs[key]!r} there, which is not known here"
    if str(theirs.get("init_lora_weights")).lower().startswith(_REWRITING):
        yield (
            f"init_lora_weights is {theirs['init_lora_weights']!r} there, which changes the base; save it in peft with"
            " path_initial_model_for_weight_conversion"
        )


def _both(
    key: str, patterns: Sequence[Mapping[str, Any] | None], module: str, *configs: Mapping[str, Any]
) -> tuple[float, ...]:
    """The value of a layer there and here; a method whose form has no patterns has one for all, whatever is written there."""
    each = zip(configs, patterns, strict=True)
    return tuple(value_for(pattern, module) or config.get(key) or 8 for config, pattern in each)


def _value_or_none(value: Any) -> Any:
    """``None`` for whatever says nothing."""
    return None if value in (None, False, "none", {}, []) else value
