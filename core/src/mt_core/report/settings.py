"""The config of a run for other eyes: secrets hidden, keys flat, and what differs between runs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

HIDDEN = "•••"
_SECRET = re.compile(
    r"(^|_)(api_?keys?|access_?keys?|private_?keys?|tokens?|secrets?|passwords?|passwd|passphrase|credentials?)(_|$)"
)
_IN_ADDRESS = re.compile(r"(?<=://)[^/\s@]+(?=@)")


def is_secret(key: str, value: Any) -> bool:
    """Whether a value is better not shown. Counts and ids of tokens (``max_tokens: 512``) are no secrets."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower().replace("-", "_")
    match = _SECRET.search(words)
    if match is None or value is None or isinstance(value, bool):
        return False
    return not (match[2].startswith("token") and isinstance(value, int | float))


def without_secrets(value: Any, key: str = "") -> Any:
    """The same structure with what is secret replaced by dots, in addresses (``https://user:word@host``) too."""
    if is_secret(key, value):
        return HIDDEN
    if isinstance(value, Mapping):
        return {name: without_secrets(item, str(name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(item) for item in value]
    return _IN_ADDRESS.sub(HIDDEN, value) if isinstance(value, str) else value


def command_without_secrets(words: Sequence[str]) -> list[str]:
    """A command line with the values of secret options hidden: ``--hub.token X`` and ``--hub.token=X``."""
    shown: list[str] = []
    hide = False
    for word in words:
        option, equals, value = word.partition("=")
        secret = option.startswith("--") and is_secret(option.rpartition(".")[2].lstrip("-"), value or "text")
        if hide and not option.startswith("--"):
            shown.append(HIDDEN)
        else:
            shown.append(f"{option}={HIDDEN}" if secret and equals else _IN_ADDRESS.sub(HIDDEN, word))
        hide = secret and not equals
    return shown


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``{"train": {"steps": 3}}`` as ``{"train.steps": 3}``."""
    keys: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            keys |= flat(value, f"{prefix}{name}.")
        else:
            keys[f"{prefix}{name}"] = value
    return keys


def differences(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The keys whose values are not the same in all configs, each with its value in every one of them.

    A secret that differs is listed, and stays hidden.
    """
    plain = [flat(config) for config in configs]
    shown = [flat(without_secrets(config)) for config in configs]
    keys = dict.fromkeys(key for config in plain for key in config)
    return {
        key: [written(config[key]) if key in config else "–" for config in shown]
        for key in keys
        if len({json.dumps(config.get(key, "–"), default=str) for config in plain}) > 1
    }


def written(value: Any) -> str:
    """A value as one would write it in YAML or on the command line."""
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False, default=str)
