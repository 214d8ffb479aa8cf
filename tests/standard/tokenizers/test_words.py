"""Texts out of words that were met before have the ids that the tokenizer gives the whole text."""

from __future__ import annotations

import unicodedata
from inspect import signature
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mt_plugin_standard.tokenizers import words as module
from mt_plugin_standard.tokenizers.huggingface import HuggingFaceTokenizer
from mt_plugin_standard.tokenizers.token_offsets import token_byte_lengths
from mt_plugin_standard.tokenizers.words import PATTERNS, Words, words

SPACES = [
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    "\x0b",
    "\x1c",
    "\x85",
    "\xa0",
    "\u180e",
    "\u200b",
    "\u2003",
    "\u3000",
]
LETTERS = ["the", "The", "THEm", "aB", "'s", "'LL", "don't", "12345", "_", "//", "(", '").', "<s>", "</s>", "<mark>"]
OTHERS = ["é", "e\u0301", "“", "”,", "日本", "🙂", "\x00", "ſ", "\u212a", "٣", "ǅ", "ʰ", "\u0301", "½"]
texts = st.lists(st.sampled_from([*SPACES, *SPACES, *LETTERS, *OTHERS]), max_size=14).map("".join)


def backend(pattern: str, **parts: Any) -> Any:
    """Byte-level BPE with some merges across everything that a pattern allows, and with added words."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    made: Any = Tokenizer(models.BPE())
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern == "GPT-2")
    cut = pre_tokenizers.Split(Regex(PATTERNS.get(pattern, pattern)), "isolated")
    made.pre_tokenizer = plain if pattern == "GPT-2" else pre_tokenizers.Sequence([cut, plain])
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([f"{a}{b}{c}{a}" for a in LETTERS for b in SPACES for c in [*OTHERS, *LETTERS]], trainer)
    made.add_tokens([AddedToken("<mark>", **parts.pop("added", {}))] if parts.pop("has_added", False) else [])
    for name, value in parts.items():
        setattr(made, name, value)
    return made


def tokenizer(inner: Any, *, parse_specials: bool = False) -> HuggingFaceTokenizer:
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")
    return HuggingFaceTokenizer(fast, Path("tokenizer.json"), {}, "mean", parse_specials=parse_specials)


def own_ids(inner: Any, texts: list[str], *, literally: bool) -> list[list[int]]:
    inner.encode_special_tokens = literally
    return [each.ids for each in inner.encode_batch(texts, add_special_tokens=False)]


@pytest.fixture(scope="module", params=list(PATTERNS))
def tokenizer_and_words(request: pytest.FixtureRequest) -> tuple[Any, Words]:
    inner = backend(request.param)
    found = words(inner, token_byte_lengths(inner))
    assert found is not None
    return inner, found


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(batch=st.lists(texts, max_size=4), literally=st.booleans())
def test_ids_are_those_of_the_whole_text(
    tokenizer_and_words: tuple[Any, Words], batch: list[str], literally: bool
) -> None:
    inner, found = tokenizer_and_words
    assert [found.ids(text, literally=literally) for text in batch] == own_ids(inner, batch, literally=literally)


def test_no_character_beside_a_space_changes_where_words_end(tokenizer_and_words: tuple[Any, Words]) -> None:
    inner, found = tokenizer_and_words
    odd = (chr(code) for code in range(0x20000) if unicodedata.category(chr(code)) in ("Zs", "Zl", "Zp", "Cc", "Cf"))
    others = (chr(code) for code in range(0x80, 0x3100, 7))
    batch = [f"the{each} the {each}the{each}\n{each}  '{each}s {each}9" for each in [*odd, *others]]
    assert len(batch) > 1000
    assert [found.ids(text, literally=True) for text in batch] == own_ids(inner, batch, literally=True)


def test_the_patterns_are_those_of_the_models() -> None:
    from transformers.convert_slow_tokenizer import TikTokenConverter
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    assert PATTERNS["Llama 3"] == signature(TikTokenConverter.__init__).parameters["pattern"].default
    assert PATTERNS["Qwen 2"] == PRETOKENIZE_REGEX


def unlike() -> dict[str, Any]:
    from tokenizers import normalizers, pre_tokenizers

    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    uncut = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return {
        "another pattern": backend(r"\w+ \w+|."),
        "no pattern": backend("GPT-2", pre_tokenizer=uncut),
        "another cut before": backend("GPT-2", pre_tokenizer=digits),
        "texts are changed": backend("GPT-2", normalizer=normalizers.Lowercase()),
        "whole words are added": backend("GPT-2", has_added=True, added={"single_word": True}),
    }


@pytest.mark.parametrize(
    "name", ["another pattern", "no pattern", "another cut before", "texts are changed", "whole words are added"]
)
def test_a_tokenizer_that_may_read_words_together_is_asked_for_each_text(name: str) -> None:
    inner = unlike()[name]
    assert words(inner, token_byte_lengths(inner)) is None
    batch = ["the don't 123", "A b <mark> c"]
    assert tokenizer(inner).encode_many(batch) == own_ids(inner, batch, literally=True)


def test_a_text_with_a_word_that_was_added_is_read_by_the_tokenizer() -> None:
    inner = backend("Qwen 2", has_added=True)
    found = words(inner, token_byte_lengths(inner))
    assert found is not None
    assert found.ids("a <mark> b", literally=True) is None
    batch = ["a <mark> b", "the </s>", "", "the  é\n"]
    for literally in (True, False):
        made = tokenizer(inner, parse_specials=not literally)
        assert made.encode_many(batch) == own_ids(inner, batch, literally=literally)


def test_a_text_that_is_normalised_is_read_by_the_tokenizer() -> None:
    from tokenizers import normalizers

    inner = backend("Qwen 2", has_added=True, normalizer=normalizers.NFC())
    batch = ["e\u0301 the", "é the", "<mar\u212a> 3", "\u1fef"]
    assert tokenizer(inner).encode_many(batch) == own_ids(inner, batch, literally=True)


def test_memory_for_words_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = backend("GPT-2")
    monkeypatch.setattr(module, "_MOST", 5)
    found = words(inner, token_byte_lengths(inner))
    assert found is not None
    batch = ["the the don't 123", "a" * 100 + " b " * 9, "one two three"]
    for _ in range(2):
        assert [found.ids(text, literally=True) for text in batch] == own_ids(inner, batch, literally=True)
    assert len(found) == 5
    assert max(map(len, islice(found, 5))) <= 32


def test_special_tokens_that_overlap_are_read_as_the_tokenizer_reads_them() -> None:
    """Tokens that are not normalized are looked for first, so that ``<s>`` wins over a longer token that is normalized."""
    from tokenizers import AddedToken

    inner = backend("Llama 3")
    inner.add_tokens([AddedToken("<s>x", special=True, normalized=True)])
    ours, texts = tokenizer(inner, parse_specials=True), ["<s>x", "a <s>x b"]
    expected = own_ids(inner, texts, literally=False)
    assert ours.encode_many(texts) == expected
    assert [ids for ids, _ in ours.encode_many_with_offsets(texts)] == expected
