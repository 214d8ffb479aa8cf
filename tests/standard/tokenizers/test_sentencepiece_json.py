"""A SentencePiece model that was saved as a ``tokenizer.json``: transformers reads texts as SentencePiece does."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from mt_plugin_standard.tokenizers.sentencepiece import SentencePieceConfig, build_sentencepiece

TEXTS = ["a cat\n", "\ta cat", "\n a cat \n", " \n  a  cat\u3000", "  a cat  ", "\n", " ", "a cat\u2581", "a\n \n cat"]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_line_ends_and_tabs_around_a_text_stay_where_spaces_go(tmp_path: Path, kind: str) -> None:
    from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
    from transformers import PreTrainedTokenizerFast

    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter([f"a cat sat on the mat {number}" for number in range(100)]),
        model_writer=model,
        model_type=kind,
        vocab_size=320,
        hard_vocab_limit=False,
        byte_fallback=True,
        normalization_rule_name="identity",
        num_threads=1,
        minloglevel=3,
    )
    (tmp_path / "tokenizer.model").write_bytes(model.getvalue())
    build_sentencepiece(SentencePieceConfig(path=str(tmp_path))).save(tmp_path)
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    reference = SentencePieceProcessor(model_proto=model.getvalue())
    found = [theirs(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    assert found == [reference.encode(text) for text in TEXTS]
