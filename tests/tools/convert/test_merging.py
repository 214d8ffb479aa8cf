"""Two SentencePiece models as one: the first one's ids stay, and both languages are read with whole words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import SentencePieceProcessor

Convert = Callable[..., str]
ENGLISH = ["the capital of France is Paris", "what is the capital of the country", "this is the house of the king"] * 20
GREEK = ["η πρωτεύουσα της Ελλάδας είναι η Αθήνα", "ποια είναι η πρωτεύουσα της χώρας", "αυτό είναι το σπίτι"] * 20


@pytest.fixture(scope="module")
def models(train_sentencepiece: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    return train_sentencepiece(folder / "en.model", ENGLISH, 320), train_sentencepiece(folder / "el.model", GREEK, 330)


def test_both_languages_are_read_and_written_and_the_first_keeps_its_ids(
    models: tuple[Path, Path], convert: Convert, tmp_path: Path
) -> None:
    said = convert("merge-vocab", *models, tmp_path / "both.model")
    english, greek, both = (SentencePieceProcessor(model_file=str(path)) for path in (*models, tmp_path / "both.model"))
    size = english.get_piece_size()
    assert [both.id_to_piece(n) for n in range(size)] == [english.id_to_piece(n) for n in range(size)]
    assert [both.get_score(n) for n in range(size)] == [english.get_score(n) for n in range(size)]
    lowest = min(english.get_score(n) for n in range(size))
    assert all(both.get_score(n) < lowest for n in range(size, both.get_piece_size()))
    new = {greek.id_to_piece(n) for n in range(greek.get_piece_size())} - {english.id_to_piece(n) for n in range(size)}
    assert both.get_piece_size() == size + len(new)
    assert f"{size + len(new):,} pieces, {len(new)} of them from" in said
    for text in ENGLISH[:3]:
        assert both.encode(text) == english.encode(text)
    for text in GREEK[:3]:
        assert both.encode(text, out_type=str) == greek.encode(text, out_type=str)
    for text in (*ENGLISH[:3], *GREEK[:3], "the Αθήνα 日本"):
        assert both.decode(both.encode(text)) == text


def test_words_that_the_second_never_cuts_come_too(models: tuple[Path, Path], convert: Convert, tmp_path: Path) -> None:
    """With their type, so that they are read before anything is merged, even against all scores."""
    import sentencepiece

    words, second = ["<|user|>", "Αθήνα-1"], tmp_path / "words.model"
    with second.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(GREEK),
            model_writer=file,
            model_type="bpe",
            vocab_size=330,
            byte_fallback=True,
            user_defined_symbols=words,
            minloglevel=2,
        )
    convert("merge-vocab", models[0], second, tmp_path / "both.model")
    both = SentencePieceProcessor(model_file=str(tmp_path / "both.model"))
    greek = SentencePieceProcessor(model_file=str(second))
    text = "<|user|>η Αθήνα-1"
    assert set(words) < set(greek.encode(text, out_type=str))
    assert both.encode(text, out_type=str) == greek.encode(text, out_type=str)
    assert both.decode(both.encode(text)) == text


def test_what_cannot_be_merged_is_refused(models: tuple[Path, Path], convert: Convert, tmp_path: Path) -> None:
    import sentencepiece

    out = tmp_path / "out.model"
    (tmp_path / "text.model").write_text("no model")
    assert "is no SentencePiece model" in convert("merge-vocab", models[0], tmp_path / "text.model", out, fails=True)
    assert "cannot read" in convert("merge-vocab", models[0], tmp_path / "missing.model", out, fails=True)
    with (tmp_path / "unigram.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(ENGLISH), model_writer=file, vocab_size=25, minloglevel=2
        )
    said = convert("merge-vocab", models[0], tmp_path / "unigram.model", out, fails=True)
    assert "is a BPE model and" in said
    assert "--model_type=bpe" in said
    assert not out.exists()
    out.write_text("mine")
    assert "exists; choose another name" in convert("merge-vocab", *models, out, fails=True)
    assert out.read_text() == "mine"
