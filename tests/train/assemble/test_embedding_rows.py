"""Tokenizers that are larger than the embedding of the weights that they belong to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from mt_core import ConfigError, DataError, UsageError
from mt_tools import generate
from mt_tools.cli.convert import main as convert
from mt_train import load_run, load_weights, train

SMALL = {"train": {"steps": 1, "sequence_len": 32, "micro_batch_size": 1}, "data": {"eval": "none", "read_rows": 8}}
ROWS = 272


def save_tokenizer(folder: Path, *, name: str) -> None:
    """Write a tokenizer of as many tokens as the embedding has rows, and one more that it calls by ``name``."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=ROWS, special_tokens=["<eos>", "<pad>"], initial_alphabet=letters)
    inner.train_from_iterator(["the quick brown fox jumps over the lazy dog"] * 9, trainer)
    inner.add_special_tokens([f"<filler_{number}>" for number in range(ROWS - inner.get_vocab_size())])
    inner.add_special_tokens([AddedToken("<soft>", special=True)])
    assert inner.token_to_id("<soft>") == ROWS
    more: dict[str, Any] = {"extra_special_tokens": {name: "<soft>"}}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>", pad_token="<pad>", **more)
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of weights with an embedding of 272 rows."""
    folder = tmp_path_factory.mktemp("rows")
    train({"model": {"name": "llama", "n_layers": 1, "vocab_size": ROWS}, **SMALL}, output=folder / "run")
    assert convert([str(folder / "run"), str(folder / "base")]) == 0
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (folder / "base" / file).unlink()
    return folder / "base"


def test_a_token_that_stands_for_images_needs_no_row_in_a_model_of_texts(base: Path, tmp_path: Path) -> None:
    """As in Gemma 3 1B, whose tokenizer has one token more than its embedding rows."""
    save_tokenizer(base, name="image_token")
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"text": f"row {number} of the quick <soft> fox"}) + "\n" for number in range(9))
    )
    raw = {"model": {"weights": str(base)}, "dataset": {"name": "jsonl", "path": str(rows)}, **SMALL}
    train(raw, output=tmp_path / "run")
    loaded = load_run(tmp_path / "run")
    assert (loaded.tokenizer.size, loaded.vocabulary) == (ROWS + 1, ROWS)
    assert len(generate(loaded, ["the quick"], greedy=True, max_new_tokens=4)) == 1
    with pytest.raises(UsageError, match="the prompt has token id 272, and the model's embedding 272 rows"):
        generate(load_weights(base), ["the <soft> fox"], max_new_tokens=4)
    with pytest.raises(DataError, match=r"rows\.jsonl:1: token id 272, and the model's embedding has only 272 rows"):
        train({**raw, "tokenizer": {"parse_specials": True}}, output=None)


def test_any_other_token_without_a_row_is_refused_at_the_start(base: Path) -> None:
    save_tokenizer(base, name="turn_token")
    with pytest.raises(ConfigError, match="huggingface has 273 tokens, and the model's embedding only 272 rows"):
        train({"model": {"weights": str(base)}, **SMALL}, output=None)
