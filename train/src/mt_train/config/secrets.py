"""Secrets in a config: found before a run starts, and hidden where it is shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mt_core.config.secrets import HIDDEN, is_secret, redact, redact_values


def redact_config(value: Any, key: str = "") -> Any:
    """A config for other eyes: every text redacted, and what stands under the name of a secret hidden."""
    if is_secret(key, value):
        return HIDDEN
    if isinstance(value, Mapping):
        return {name: redact_config(item, str(name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact_config(item) for item in value]
    return redact_values(value)


def secret_keys(raw: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted keys whose value has the shape of a secret, or is one of the environment's."""
    for key, value in raw.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from secret_keys(value, f"{name}.")
        elif isinstance(value, list | tuple):
            yield from secret_keys({str(index): item for index, item in enumerate(value)}, f"{name}.")
        elif isinstance(value, str) and redact(value) != value:
            yield name
