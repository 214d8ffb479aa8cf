"""Secrets never reach a log, a console or a saved config."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

HIDDEN = "•••"
_NAMES = re.compile(r"(?i)(?:^|_)(token|secret|password|passwd|api_?key|access_?key|credentials?)(?:$|_)")
_SHAPES = re.compile(
    r"\bhf_[A-Za-z0-9]{20,}"  # Hugging Face
    r"|\bgh[pousr]_[A-Za-z0-9]{30,}"  # GitHub
    r"|\bsk-[A-Za-z0-9_-]{20,}"  # OpenAI and others
    r"|\bAKIA[0-9A-Z]{16}\b"  # AWS
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"  # user:password@ in an address
)
_SHORTEST = 8
"""Shorter values of the environment are no secrets, and hiding them would garble ordinary text."""


def redact(text: str) -> str:
    """The text with secrets replaced: those of the environment, and what has the shape of a well-known kind."""
    for value in _secrets_of(os.environ):
        text = text.replace(value, HIDDEN)
    return _SHAPES.sub(HIDDEN, text)


def _secrets_of(environment: Mapping[str, str]) -> list[str]:
    found = {value for name, value in environment.items() if _NAMES.search(name) and len(value) >= _SHORTEST}
    return sorted(found, key=len, reverse=True)  # the longest first: one may contain another


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
