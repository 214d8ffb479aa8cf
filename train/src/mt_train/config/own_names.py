"""Answers to keys that are ours but lack their section (``--lr`` is ``--optimizer.lr``), are of the command, or are misspelled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from mt_core.config.base import MtConfig
from mt_core.errors import UsageError

_MOST = 4
"""Options that an answer names."""

COMMAND_OPTIONS = ("recipe", "output", "overwrite", "resume", "nproc_per_node", "restart", "profile")
"""Options of ``mt-train`` that a config file is likely to have among its keys."""

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
    if name in COMMAND_OPTIONS:
        return f"It is no key of a config, but an option of the command: --{key.replace('_', '-')}."
    found = [f"{place}.{name}" for place, config in configs.items() if name in config.model_fields]
    if not any(option.startswith("train.") for option in found):
        found = [f"train.{each}" for each in configs["train"].model_fields if each.endswith(f"_{name}")] + found
    options = [f"--{option.replace('_', '-')}" for option in found[:_MOST]]
    if not options:
        return ""
    return f"It is {options[0]}." if len(options) == 1 else f"It may be {', '.join(options[:-1])} or {options[-1]}."


def answer_path(word: str) -> str:
    """Say which option takes the file or folder of this name, where there is one, as the end of a message."""
    try:
        if (Path(word) / "config.json").is_file():
            return f". A folder of weights is given as --model.weights {word}"
        if not Path(word).is_file():
            return ""
    except OSError:  # a name longer than names are
        return ""
    is_config = word.endswith((".yaml", ".yml"))
    return (
        f". A config is given as --config {word}"
        if is_config
        else f". A file of rows is given as --dataset.path {word}"
    )
