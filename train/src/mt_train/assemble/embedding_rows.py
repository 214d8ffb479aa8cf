"""Tokens of a run's tokenizer, and the rows that the model's embedding has for them."""

from __future__ import annotations

from mt_core.errors import ConfigError, Fault
from mt_core.protocols import Tokenizer
from mt_train.assemble.parts import Parts
from mt_train.config.run import RunConfig

MEDIA_TOKENS = frozenset({"audio_token", "image_token", "video_token"})
"""Names that a tokenizer gives to tokens in whose place a model that sees or hears has features."""


def check_size(parts: Parts, tokenizer: Tokenizer) -> None:
    """Raise ``ConfigError`` for a tokenizer that is larger than the model's embedding.

    Tokens that stand for media need no row: a model of texts alone may have the tokenizer of its relatives, as Gemma 3 1B has
    (https://github.com/huggingface/transformers/issues/37011).
    """
    config, rows = parts.config, parts.config.model.options.vocab_size
    if tokenizer.size <= rows or set(range(rows, tokenizer.size)) <= _media_ids(tokenizer):
        return
    raise ConfigError(
        [
            Fault(
                key="tokenizer",
                problem=f"{config.tokenizer.name} has {tokenizer.size} tokens, and the model's embedding only {rows} rows.",
                fix=more_rows(config, tokenizer.size, adds_tokens=parts.adds_tokens)
                + ", or choose the tokenizer that belongs to the weights.",
            )
        ]
    )


def _media_ids(tokenizer: Tokenizer) -> set[int]:
    named: dict[str, str] = getattr(tokenizer, "special_tokens", {})
    ids: dict[str, int] = getattr(tokenizer, "special_ids", {})
    return {ids[text] for name, text in named.items() if name in MEDIA_TOKENS and text in ids}


def more_rows(config: RunConfig, count: int, *, adds_tokens: bool = False) -> str:
    """How the model gets so many rows. Rows of weights are those of their files, unless the run itself ``adds_tokens``."""
    weights = config.model.source.weights
    if weights is None or adds_tokens:
        return f"Set --model.vocab-size {count} or more"
    path = getattr(config.tokenizer.options, "path", "PATH")
    return (
        f"Write a folder with `mt-convert resize-vocab {weights} OUT --tokenizer {path}` and give --model.weights OUT"
    )
