"""Samples as people see them: special tokens are told from text that looks like them, and no letter is lost or moved."""

from __future__ import annotations

from typing import Any

import pytest

from mt_core import Sample
from mt_train.config.data import DataConfig
from mt_train.data.sample_text import parts_of
from mt_train.data.templates import build_template

TURNS = [
    {"role": "user", "content": "What is </s> or 👩‍👩‍👧 ?"},
    {"role": "assistant", "content": "an end, é </s> 你"},
]


@pytest.mark.parametrize("name", ["chatml", "zephyr"])
def test_what_looks_like_a_special_token_is_told_from_one(tokenizer: Any, name: str) -> None:
    encoded = build_template(tokenizer, DataConfig(template=name)).encode(TURNS)
    parts = list(parts_of(Sample(encoded.ids, encoded.trained, "r:1"), tokenizer))
    whole = "".join(part.text for part in parts)
    assert all(turn["content"] in whole for turn in TURNS), whole
    special = {part.text for part in parts if part.special}
    assert special
    assert all(text.startswith("<") for text in special)
    assert "an end, é </s> 你" in "".join(part.text for part in parts if part.trained and not part.special)


def test_a_character_of_several_tokens_is_shown_once_wherever_training_begins(tokenizers: dict[str, Any]) -> None:
    ids = tokenizers["byte"].encode("a👩b")
    for begin in range(1, len(ids)):
        sample = Sample(ids, [place >= begin for place in range(len(ids))], "r:1")
        assert "".join(part.text for part in parts_of(sample, tokenizers["byte"])).replace("\ufffd", "") == "a👩b"


def test_nothing_that_a_terminal_obeys_is_shown_as_it_is(tokenizers: dict[str, Any]) -> None:
    """Escape sequences, also those of one character, and marks that turn the text around them."""
    text = "a\x1b[31m\x9b31m\x85\u202eb\u2066c\x7f\n"
    ids = tokenizers["byte"].encode(text)
    shown = "".join(part.text for part in parts_of(Sample(ids, [True] * len(ids), "r:1"), tokenizers["byte"]))
    assert shown == "a␛[31m<U+009B>31m<U+0085><U+202E>b<U+2066>c␡\n"
