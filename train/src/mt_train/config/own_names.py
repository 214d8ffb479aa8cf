"""Answers to keys that are ours but stand without their section, ``--lr`` for ``--optimizer.lr``, or are misspelled options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from mt_core.config.base import MtConfig
from mt_core.errors import UsageError

_MOST = 4
"""Options that an answer names."""

_MISSPELLED = 0.8
"""Similarity from which a word is a misspelling of another: ``confg`` and ``config`` have 0.91, ``row_filters`` and ``profile`` 0.67."""


def refuse_misspelled(key: str, own: Sequence[str], known: Sequence[str]) -> None:
    """Refuse an option that is a letter or two off one of the command's ``own``; a kind that is not installed may have any other name."""
    for near in get_close_matches(key, [*own, *known], n=1, cutoff=_MISSPELLED):
        if near in own:
            raise UsageError(f"--{key.replace('_', '-')} is no option. Did you mean --{near.replace('_', '-')}?")


def answer_own_name(key: str, configs: Mapping[str, type[MtConfig]]) -> str:
    """Say which options have this name, or in ``train`` end in it; empty where none does. ``configs``: section or slot → its keys."""
    name = key.replace("-", "_")
    found = [f"{place}.{name}" for place, config in configs.items() if name in config.model_fields]
    if not any(option.startswith("train.") for option in found):
        found = [f"train.{each}" for each in configs["train"].model_fields if each.endswith(f"_{name}")] + found
    options = [f"--{option.replace('_', '-')}" for option in found[:_MOST]]
    if not options:
        return ""
    return f"It is {options[0]}." if len(options) == 1 else f"It may be {', '.join(options[:-1])} or {options[-1]}."
