"""A SentencePiece model that was saved as a ``tokenizer.json``: transformers reads texts as SentencePiece does."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from mt_plugin_standard.tokenizers.sentencepiece import SentencePieceConfig, build_sentencepiece

TEXTS = ["a cat\n", "\ta cat", "\n a cat \n", " \n  a  cat\u3000", "  a cat  ", "\n", " ", "a cat\u2581", "a\n \n cat"]
LINES = [f"a cat sat on the mat {number}" for number in range(100)]
"""A corpus for small models."""
MARKED = [
    "a [U]cat",
    "[U] a",
    "a\ncat\r\nsat",
    "\na",
    " \n a  \n ",
    "a\u2581\u2581cat  ",
    "a\n\n[U]\ncat",
    "～a",
]
WIDE = [
    "\u1112\u1161\u11ab cat",
    "\uff76\uff9e",
    "\u2460\u0300a",
    "a\r\ncat",
    "\u3000\u0323a",
    "\ufb01\u00bd",
    "\uff5e\u301c",
    "\t a",
]


def read_by_both(folder: Path, texts: list[str], lines: list[str], **options: object) -> tuple[list[list[int]], ...]:
    """Return the ids of SentencePiece, and those of transformers with the ``tokenizer.json`` of the same model."""
    from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
    from transformers import PreTrainedTokenizerFast

    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=3,
        **options,
    )
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    build_sentencepiece(SentencePieceConfig(path=str(folder))).save(folder)
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    reference = SentencePieceProcessor(model_proto=model.getvalue())
    found = [theirs(text, add_special_tokens=False)["input_ids"] for text in texts]
    return found, [reference.encode(text) for text in texts]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("rule", ["identity", "nmt_nfkc"])
def test_symbols_are_found_in_a_text_that_goes_on_behind_them(tmp_path: Path, kind: str, rule: str) -> None:
    found, expected = read_by_both(
        tmp_path,
        MARKED,
        LINES,
        model_type=kind,
        vocab_size=330,
        byte_fallback=True,
        normalization_rule_name=rule,
        remove_extra_whitespaces=False,
        user_defined_symbols=["[U]", "\n", "\u2581\u2581"],
    )
    assert found == expected


def test_every_one_of_hundreds_of_symbols_that_the_rules_would_change_is_found(tmp_path: Path) -> None:
    wide = [chr(0xFF10 + digit) for digit in range(10)]
    symbols = [f"[{one}{two}{letter}]" for letter in "abc" for one in wide for two in wide]
    found, expected = read_by_both(
        tmp_path,
        [f"a {symbol} cat～" for symbol in symbols],
        LINES,
        model_type="bpe",
        vocab_size=630,
        byte_fallback=True,
        normalization_rule_name="nmt_nfkc",
        user_defined_symbols=symbols,
    )
    assert found == expected


@pytest.mark.parametrize("rule", ["nfkc", "nmt_nfkc", "nmt_nfkc_cf"])
def test_characters_are_composed_as_sentencepiece_does(tmp_path: Path, rule: str) -> None:
    found, expected = read_by_both(
        tmp_path,
        WIDE,
        [f"a cat sat on the mat {number} 한 ガ" for number in range(100)],
        model_type="bpe",
        vocab_size=330,
        byte_fallback=True,
        normalization_rule_name=rule,
        remove_extra_whitespaces=False,
    )
    assert found == expected


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_line_ends_and_tabs_around_a_text_stay_where_spaces_go(tmp_path: Path, kind: str) -> None:
    found, expected = read_by_both(
        tmp_path,
        TEXTS,
        LINES,
        model_type=kind,
        vocab_size=320,
        byte_fallback=True,
        normalization_rule_name="identity",
    )
    assert found == expected
