"""A larger tokenizer for a folder of weights: rows of old pieces stay, new ones begin as what their text was read as."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from sentencepiece import SentencePieceProcessor
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from mt_train.cli.train import main as mt_train

Convert = Callable[..., str]
ENGLISH = ["the capital of France is Paris", "what is the capital of the country", "this is the house of the king"] * 20
GREEK = ["η πρωτεύουσα της Ελλάδας είναι η Αθήνα", "ποια είναι η πρωτεύουσα της χώρας", "αυτό είναι το σπίτι"] * 20
PER_TOKEN = ("model.embed_tokens.weight", "lm_head.weight")


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}


@pytest.fixture(scope="module")
def models(train_sentencepiece: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    return train_sentencepiece(folder / "en.model", ENGLISH, 300), train_sentencepiece(folder / "el.model", GREEK, 330)


@pytest.fixture
def merged(models: tuple[Path, Path], convert: Convert, tmp_path: Path) -> Path:
    convert("merge-vocab", *models, tmp_path / "both.model")
    return tmp_path / "both.model"


def make_base(folder: Path, tokenizer: Path, **more: Any) -> Path:
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape |= {"num_key_value_heads": 1, "vocab_size": 300, "bos_token_id": 1, "eos_token_id": 2}
    LlamaForCausalLM(LlamaConfig(**{**shape, **more})).save_pretrained(folder)
    shutil.copyfile(tokenizer, folder / "tokenizer.model")
    return folder


def train(folder: Path, texts: list[str], *words: object) -> int:
    (folder / "texts.txt").write_text("\n".join(texts))
    given = ["--dataset", "text", "--dataset.path", folder / "texts.txt", "--train.sequence-len", 32]
    given += ["--train.steps", 2, "--eval.samples", 0, "--output", folder / "run", "--overwrite", *words]
    return mt_train([str(word) for word in given])


@pytest.mark.parametrize("tied", [False, True])
def test_a_merged_vocabulary_comes_onto_a_model_which_trains_on_both_languages(
    tied: bool,
    models: tuple[Path, Path],
    merged: Path,
    convert: Convert,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, out = make_base(tmp_path / "base", models[0], tie_word_embeddings=tied), tmp_path / "out"
    with_both = ("--tokenizer", "sentencepiece", "--tokenizer.path", merged)
    assert train(tmp_path, GREEK, "--model.weights", source, *with_both) == 2
    fix = (
        f"Write a folder with `mt-convert resize-vocab {source} OUT --tokenizer {merged}` and give --model.weights OUT"
    )
    assert fix in capsys.readouterr().err
    said = convert("resize-vocab", source, out, "--tokenizer", merged)
    english, both = (SentencePieceProcessor(model_file=str(path)) for path in (models[0], merged))
    size = both.get_piece_size()
    assert f"{size} tokens" in said
    before, after = tensors(source), tensors(out)
    assert set(after) == set(before)
    for name, value in before.items():
        if name not in PER_TOKEN:
            assert torch.equal(after[name], value), name
            continue
        assert torch.equal(after[name][:300], value)
        for token in range(300, size):
            torch.testing.assert_close(after[name][token], value[english.encode(both.decode([token]))].mean(0))
    model, theirs = (AutoModelForCausalLM.from_pretrained(folder) for folder in (out, source))
    known = torch.tensor([english.encode(ENGLISH[0])])
    torch.testing.assert_close(model(known).logits[..., :300], theirs(known).logits, atol=1e-5, rtol=0)
    theirs.resize_token_embeddings(size, mean_resizing=False)
    shapes = {name: value.shape for name, value in theirs.state_dict().items()}
    assert {name: value.shape for name, value in model.state_dict().items()} == shapes
    assert (model.config.vocab_size, model.config.tie_word_embeddings) == (size, tied)
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert (len(tokenizer), tokenizer.bos_token_id, tokenizer.eos_token_id) == (size, 1, 2)
    for text in (ENGLISH[0], GREEK[0], "the Αθήνα 日本"):
        assert tokenizer(text, add_special_tokens=False).input_ids == both.encode(text)
    assert train(tmp_path, GREEK, "--model.weights", out) == 0
    assert train(tmp_path, GREEK, "--model.weights", out, *with_both) == 0


def enlarge(folder: Path, merges: list[tuple[str, str]]) -> Path:
    """Give a folder's tokenizer.json these merges, after all ids that it has."""
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    for left, right in merges:
        content["model"]["merges"].append([left, right])
        content["model"]["vocab"][left + right] = len(content["model"]["vocab"])
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.fixture
def larger(pretrained_folder: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "larger"
    shutil.copytree(pretrained_folder, folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    return enlarge(folder, [("Q", "u"), ("Qu", "o"), ("\u00ce", "\u00a9"), ("\u00e6", "\u0139")])


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("rows", [280, 282, 300])
def test_a_larger_tokenizer_json_comes_as_a_folder_or_as_a_file(
    rows: int, alone: bool, pretrain: Callable[..., Path], larger: Path, convert: Convert, tmp_path: Path
) -> None:
    """Rows that the model had for no token become those of new tokens. A file alone takes what the old tokenizer was told."""
    given, source, out = larger, pretrain(vocab_size=rows, dtype="bfloat16"), tmp_path / "out"
    size = len(AutoTokenizer.from_pretrained(source))
    if alone:
        given = shutil.copyfile(larger / "tokenizer.json", tmp_path / "mine.json")
    convert("resize-vocab", source, out, "--tokenizer", given, "--multiple", 4)
    old, new = (AutoTokenizer.from_pretrained(folder) for folder in (source, out))
    assert len(new) == size + 4
    assert new.special_tokens_map == old.special_tokens_map
    assert new.chat_template == old.chat_template
    assert new("Quo \u03a9").input_ids == [size + 1, *old(" ").input_ids, size + 2]
    before, after = tensors(source), tensors(out)
    for name in PER_TOKEN:
        value, grown = before[name].float(), after[name]
        assert grown.dtype == torch.bfloat16
        assert len(grown) == max(-(-rows // 4), -(-(size + 4) // 4)) * 4
        assert torch.equal(grown[:size].float(), value[:size])
        pieces = [old(text).input_ids for text in ("Qu", "Quo", "\u03a9")]
        means = [*(value[ids].mean(0) for ids in pieces), value[:size].mean(0)]  # the last piece is half a character
        for token, mean in enumerate(means):
            assert torch.equal(grown[size + token], mean.to(torch.bfloat16)), (name, token)
    assert AutoModelForCausalLM.from_pretrained(out).config.vocab_size == len(after[PER_TOKEN[0]])
    assert train(tmp_path, ["Quo Quo \u03a9"] * 40, "--model.weights", out) == 0


def test_the_old_chat_template_is_kept_and_a_new_end_ends_texts(
    pretrained_folder: Path, larger: Path, convert: Convert, tmp_path: Path
) -> None:
    theirs = AutoTokenizer.from_pretrained(larger)
    theirs.chat_template = None
    theirs.add_special_tokens({"eos_token": "<|end|>", "pad_token": "<pad>"})
    theirs.save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs/chat_template.jinja").unlink(missing_ok=True)
    out = tmp_path / "out"
    convert("resize-vocab", pretrained_folder, out, "--tokenizer", tmp_path / "theirs", "--init", "mean")
    new = AutoTokenizer.from_pretrained(out)
    assert new.chat_template == AutoTokenizer.from_pretrained(pretrained_folder).chat_template
    generation = json.loads((out / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [1, new.eos_token_id]
    assert generation["pad_token_id"] == json.loads((out / "config.json").read_text())["pad_token_id"] == len(new) - 1
    grown = tensors(out)[PER_TOKEN[0]]
    torch.testing.assert_close(grown[-1], grown[:-6].mean(0))


def test_a_tokenizer_with_other_pieces_under_old_ids_is_refused_by_the_first(
    pretrained_folder: Path, larger: Path, convert: Convert, tmp_path: Path
) -> None:
    file, out = larger / "tokenizer.json", tmp_path / "out"
    content = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    vocabulary["A"], vocabulary["Z"] = vocabulary["Z"], vocabulary["A"]
    file.write_text(json.dumps(content), encoding="utf-8")
    said = convert("resize-vocab", pretrained_folder, out, "--tokenizer", larger, fails=True)
    first = min(vocabulary["A"], vocabulary["Z"])
    assert f"id {first} is 'A' in the tokenizer of {pretrained_folder}, and 'Z' in {larger}" in said
    smaller = enlarge(shutil.copytree(pretrained_folder, tmp_path / "smaller"), [("Q", "u")])
    said = convert("resize-vocab", smaller, out, "--tokenizer", pretrained_folder, fails=True)
    assert f"is 'Qu' in the tokenizer of {smaller}, and {pretrained_folder} has no such id" in said
    assert not out.exists()


def test_what_is_no_tokenizer_and_what_has_none_is_refused(
    pretrained_folder: Path, larger: Path, models: tuple[Path, Path], convert: Convert, tmp_path: Path
) -> None:
    def refused(source: Path, *words: object) -> str:
        return convert("resize-vocab", source, tmp_path / "out", *words, fails=True)

    assert "missing does not exist" in refused(pretrained_folder, "--tokenizer", tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    assert "empty has no tokenizer: neither" in refused(pretrained_folder, "--tokenizer", tmp_path / "empty")
    (tmp_path / "text.model").write_text("no model")
    assert "is not a SentencePiece model" in refused(pretrained_folder, "--tokenizer", tmp_path / "text.model")
    words = ("--tokenizer", larger, "--add-tokens", "a", "--pad-token", "b")
    assert "leave out --add-tokens, --pad-token" in refused(pretrained_folder, *words)
    base = make_base(tmp_path / "base", models[0])
    (base / "tokenizer.model").unlink()
    assert "base has no tokenizer" in refused(base, "--tokenizer", larger)
    assert not (tmp_path / "out").exists()
