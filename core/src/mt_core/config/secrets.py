"""Secrets never reach a log, a console or a saved config."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

HIDDEN = "•••"
_NAMES = re.compile(
    r"(^|_)(api_?keys?|access_?keys?|private_?keys?|tokens?|secrets?|passwords?|passwd|passphrase|credentials?)(_|$)"
)
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
    found = {
        value for name, value in environment.items() if is_secret(name, _number(value)) and len(value) >= _SHORTEST
    }
    return sorted(found, key=len, reverse=True)  # the longest first: one may contain another


def _number(value: str) -> str | int:
    return int(value) if value.isdigit() else value  # MAX_TOKENS=100000000 is a count


def is_secret(key: str, value: Any) -> bool:
    """Whether a value of this name is better not shown. Counts and ids of tokens (``max_tokens: 512``) are no secrets."""
    word = _secret_word(key)
    if not word or value is None or isinstance(value, bool):
        return False
    return not (word.startswith("token") and isinstance(value, int | float))


@cache
def _secret_word(key: str) -> str:
    """The word in a name that tells of a secret; cached, since every line of a log is looked through for all of them."""
    match = _NAMES.search(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower().replace("-", "_"))
    return match[2] if match else ""


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
