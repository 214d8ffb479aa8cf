"""A folder of weights with more tokens: tokenizer, embedding and head grow together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mt_core.errors import DataError, UsageError
from mt_core.plugins.host import PluginHost
from mt_tools.convert.source import Source, open_source
from mt_train.assemble.parts import Parts
from mt_train.config.reading import read_small_text
from mt_train.plugins.resolve import resolve

MOST_BYTES = 10**8
"""Largest file of tokens, in bytes."""


def with_tokens(
    given: str, host: PluginHost, *, family: str | None, tokens: Mapping[str, Any], multiple: int, seed: int
) -> Source:
    """The source with these options of its tokenizer, and rows for them in a multiple of ``multiple``.

    What is added is the tokenizer's own matter; a run that is started with the same options gets the same rows.
    """
    source = open_source(given, host, family, {key: value for key, value in tokens.items() if value})
    raw = source.parts.config.as_raw()
    size = source.parts.config.model.options.vocab_size
    raw["model"]["vocab_size"] = -(-size // multiple) * multiple
    raw["train"]["seed"] = seed
    return Source(source.path, Parts.of(resolve(raw, host)), source.writer, None)


def tokens_of_file(path: Path) -> list[str]:
    """One token a line. Raises ``DataError`` when the file cannot be read or has none."""
    try:
        lines = read_small_text(path, "utf-8-sig", most=MOST_BYTES).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"cannot read the tokens in {path}: {error}; it has to be UTF-8, a token in each line"
        ) from error
    tokens = list(filter(str.strip, lines))
    if not tokens:
        raise DataError(f"{path} has no tokens; write one in each line")
    return tokens


def check_wanted(tokens: Mapping[str, Any]) -> None:
    """Raise ``UsageError`` when no token is asked for."""
    if not any(tokens.get(key) for key in ("add_tokens", "add_special_tokens", "pad_token")):
        raise UsageError(
            "nothing to add: give --add-tokens, --add-special-tokens, --tokens-file, --pad-token or --tokenizer"
        )
