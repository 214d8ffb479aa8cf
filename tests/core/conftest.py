"""What the tests of several parts train on the spot, on Python's own help texts."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def train_sentencepiece() -> Any:
    """``train_sentencepiece(file, texts, size)``: a model as Llama's: byte fallback, nothing normalised away, no padding token."""

    def train(file: Path, texts: Iterable[str], size: int) -> Path:
        import sentencepiece

        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            model_type="bpe",
            vocab_size=size,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            minloglevel=2,
        )
        file.write_bytes(model.getvalue())
        return file

    return train
