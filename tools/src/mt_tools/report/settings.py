"""The config of a run for other eyes: secrets hidden, keys flat, and what differs between runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mt_train.config.secrets import redact_config


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``{"train": {"steps": 3}}`` as ``{"train.steps": 3}``."""
    keys: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            keys |= flatten(value, f"{prefix}{name}.")
        else:
            keys[f"{prefix}{name}"] = value
    return keys


def differences(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The keys whose values are not the same in all configs, each with its value in every one of them.

    A secret that differs is listed, and stays hidden.
    """
    plain = [flatten(config) for config in configs]
    shown = [flatten(redact_config(config)) for config in configs]
    keys = dict.fromkeys(key for config in plain for key in config)
    return {
        key: [format_value(config[key]) if key in config else "–" for config in shown]
        for key in keys
        if len({json.dumps(config.get(key, "–"), default=str) for config in plain}) > 1
    }


def format_value(value: Any) -> str:
    """A value as one would write it in YAML or on the command line."""
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False, default=str)
