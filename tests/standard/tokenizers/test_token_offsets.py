"""Offsets that are sums of token widths are the tokenizer's own offsets, wherever they are used at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mt_core import DataError
from mt_plugin_standard.tokenizers.huggingface import HuggingFaceTokenizer
from mt_plugin_standard.tokenizers.token_offsets import TokenOffsets, token_byte_lengths
from mt_train.data.templates.notation import TokenSpans

pieces = ["the ", "<s>", "</s>", "\n", "  ", "Zz", "'s", "é", "e\u0301", "日本", "🙂", "\u2028", "\x00", "the the"]
texts = st.lists(st.sampled_from(pieces), max_size=12).map("".join)


def backend(**parts: Any) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    made: Any = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<s>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(["the the is it's 日本 \n\n"] * 9, trainer)
    made.add_special_tokens([AddedToken("</s>", lstrip=parts.pop("lstrip", False))])
    for name, value in parts.items():
        setattr(made, name, value)
    return made


def tokenizer(inner: Any) -> HuggingFaceTokenizer:
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")
    return HuggingFaceTokenizer(fast, Path("tokenizer.json"), {}, "mean")


def kinds() -> dict[str, tuple[dict[str, Any], bool]]:
    """Parts of a tokenizer, and whether its texts are nothing but their tokens."""
    from tokenizers import normalizers, pre_tokenizers, processors

    spaced = pre_tokenizers.ByteLevel(add_prefix_space=True)
    cut = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return {
        "plain": ({}, True),
        "normal form": ({"normalizer": normalizers.NFC()}, True),
        "whole offsets": ({"post_processor": processors.ByteLevel(trim_offsets=False)}, True),
        "trimmed offsets": ({"post_processor": processors.ByteLevel(trim_offsets=True)}, False),
        "lower case": ({"normalizer": normalizers.Lowercase()}, False),
        "a space in front": ({"pre_tokenizer": spaced}, False),
        "spaces left out": ({"pre_tokenizer": cut}, False),
        "a token that takes spaces": ({"lstrip": True}, False),
    }


@pytest.mark.parametrize("kind", kinds())
def test_ids_offsets_and_tokens_in_a_span_are_those_of_the_tokenizer(kind: str) -> None:
    parts, is_summed = kinds()[kind]
    made = tokenizer(backend(**parts))
    assert (token_byte_lengths(made._inner.backend_tokenizer) is not None) == is_summed

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(texts, min_size=1, max_size=4), st.randoms())
    def check(many: list[str], chance: Any) -> None:
        for text, (ids, found) in zip(many, made.encode_many_with_offsets(many), strict=True):
            own = made.encode_with_offsets(text)
            assert (ids, list(found)) == own
            start = chance.randint(0, len(text))
            end = chance.randint(start, len(text))
            assert TokenSpans(ids, found).tokens_in(start, end) == TokenSpans(*own).tokens_in(start, end)

    check()


def test_texts_that_are_nothing_but_their_tokens_take_the_short_way() -> None:
    made = tokenizer(backend())
    assert [type(found) for _, found in made.encode_many_with_offsets(["the é", "", "</s>"])] == [TokenOffsets] * 3


def test_a_lone_surrogate_is_refused_with_its_place() -> None:
    with pytest.raises(DataError, match="lone surrogate"):
        tokenizer(backend()).encode_many_with_offsets(["the", "a\ud800"])
