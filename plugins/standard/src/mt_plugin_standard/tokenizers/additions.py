"""Tokens that a Hugging Face tokenizer gets beside its own."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mt_core import MtError

from .faults import panics, try_once


def add_tokens(inner: Any, plain: Iterable[str], special: Iterable[str]) -> dict[int, tuple[int, ...]]:
    """Add the tokens that the tokenizer lacks; returns their ids, and what each was read as before."""
    from transformers import AddedToken

    known = inner.get_vocab()
    wanted = dict.fromkeys(plain, False) | dict.fromkeys(special, True)
    new = {text: is_special for text, is_special in wanted.items() if text not in known}
    before = {text: tuple(inner(text, add_special_tokens=False)["input_ids"]) for text in new}
    for text, is_special in new.items():
        inner.add_tokens([AddedToken(text, special=is_special, normalized=False)], special_tokens=is_special)
    now = inner.get_vocab()
    return {now[text]: before[text] for text in new}


def grown_size(file: Path, wanted: Iterable[str]) -> int:
    """Ids of a ``tokenizer.json``, and of what its config adds, once these tokens are in it. Imports no torch.

    Raises ``MtError`` for a folder without that file: other tokenizers keep their ids in other places.
    """
    if not file.is_file():
        raise MtError(
            f"{file.absolute()} does not exist, and tokens are added to a tokenizer.json only; save one there"
        )
    from tokenizers import Tokenizer

    try_once(file)
    try:
        known = dict(Tokenizer.from_file(str(file)).get_vocab(with_added_tokens=True))
    except BaseException as error:  # the Rust side raises bare Exceptions, and panics, whose class comes with the first
        if not isinstance(error, (Exception, *panics())):
            raise
        raise MtError(f"{file.absolute()} cannot be read as a Hugging Face tokenizer: {error}") from error
    beside = file.parent / "tokenizer_config.json"
    listed = json.loads(beside.read_text(encoding="utf-8")).get("added_tokens_decoder") if beside.is_file() else None
    known |= {token["content"]: int(number) for number, token in (listed or {}).items()}
    return max(known.values()) + 1 + len(set(wanted) - set(known))
