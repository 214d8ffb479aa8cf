"""Folders from folders and runs: bit for bit, opened by transformers, streamed, and whole or not at all."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from mt_tools.convert.tokenizer_files import open_written
from mt_train import load_run, train
from mt_train.cli.train import main as mt_train

Convert = Callable[..., str]


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}


def assert_equal(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> None:
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[name]) and value.dtype == after[name].dtype for name, value in before.items())


def logits(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder)(torch.arange(40)[None]).logits


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("form", ["single", "sharded", "bin"])
def test_a_folder_comes_out_bit_for_bit_and_transformers_opens_it(
    form: str, tied: bool, pretrain: Callable[..., Path], convert: Convert, tmp_path: Path
) -> None:
    source = pretrain(shard="30KB" if form == "sharded" else "5GB", tie_word_embeddings=tied)
    before = tensors(source)
    if form == "bin":
        torch.save(before, source / "pytorch_model.bin")
        (source / "model.safetensors").rename(tmp_path / "aside.safetensors")
    convert(source, tmp_path / "out", "--shard-size", "40KB")
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 1
    assert_equal(before, tensors(tmp_path / "out"))
    convert(tmp_path / "out", tmp_path / "again")
    assert_equal(before, tensors(tmp_path / "again"))
    if form == "bin":
        (source / "pytorch_model.bin").unlink()
        shutil.copy(tmp_path / "aside.safetensors", source / "model.safetensors")
    assert torch.equal(logits(tmp_path / "out"), logits(source))
    text = "What is <|user|> Paris?"
    theirs, ours = AutoTokenizer.from_pretrained(source), AutoTokenizer.from_pretrained(tmp_path / "out")
    assert ours(text).input_ids == theirs(text).input_ids
    assert ours.chat_template == theirs.chat_template
    for key in ("bos_token_id", "eos_token_id", "tie_word_embeddings", "vocab_size", "rope_parameters"):
        assert read(tmp_path / "out/config.json")[key] == read(source / "config.json")[key], key


def read(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    ("asked", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)]
)
def test_a_dtype_is_that_of_every_tensor_and_of_the_config(
    asked: str, dtype: torch.dtype, pretrained_folder: Path, convert: Convert, tmp_path: Path
) -> None:
    convert(pretrained_folder, tmp_path / "out", "--dtype", asked)
    assert_equal(
        {name: value.to(dtype) for name, value in tensors(pretrained_folder).items()}, tensors(tmp_path / "out")
    )
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").dtype == dtype


def test_a_value_that_half_precision_cannot_hold_is_refused(
    pretrained_folder: Path, convert: Convert, tmp_path: Path
) -> None:
    source = tmp_path / "large"
    shutil.copytree(pretrained_folder, source)
    changed = tensors(source)
    changed["model.norm.weight"][3] = 70_000.0
    save_file(changed, source / "model.safetensors", {"format": "pt"})
    said = convert(source, tmp_path / "out", "--dtype", "fp16", fails=True)
    assert "model.norm.weight has values beyond float16; choose bf16 or fp32" in said
    assert {path.name for path in tmp_path.iterdir()} == {"large"}, "nothing half-written is left"


def test_a_run_comes_out_with_the_weights_that_it_saved_and_what_a_card_says(
    pretrained_folder: Path, convert: Convert, tmp_path: Path
) -> None:
    run, text, base = tmp_path / "run", tmp_path / "text.txt", tmp_path / "bases" / "my-llama"
    text.write_text("What is the capital of France? Paris.\n\n" * 50)
    shutil.copytree(pretrained_folder, base)
    words = [
        "--model",
        "llama",
        "--model.weights",
        str(base),
        "--tokenizer.path",
        str(pretrained_folder),
        "--dataset",
        "text",
        "--dataset.path",
        str(text),
    ]
    words += ["--train.steps", "2", "--train.sequence-len", "32", "--output", str(run)]
    assert mt_train([*words, "--checkpoint.every-steps", "1", "--data.template", "chatml"]) == 0
    saved = run / "checkpoints/step-00000001"
    convert(saved, tmp_path / "first")
    convert(run, tmp_path / "last")
    assert_equal(tensors(saved / "model"), tensors(tmp_path / "first"))
    assert_equal(tensors(run / "checkpoints/step-00000002/model"), tensors(tmp_path / "last"))
    assert not torch.equal(logits(tmp_path / "first"), logits(tmp_path / "last"))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "last")
    said = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert said == "<s><|im_start|>user\nHi<|im_end|>\n"
    card = (tmp_path / "last/README.md").read_text()
    assert "trained: 2 steps, objective pretrain, dataset text" in card
    assert "- base: my-llama\n" in card
    assert str(tmp_path) not in card
    assert "license: fill in" in card
    # a run whose base is gone is whole by itself
    shutil.rmtree(base)
    convert(run, tmp_path / "again")
    assert_equal(tensors(tmp_path / "last"), tensors(tmp_path / "again"))
    assert "- base: my-llama\n" in (tmp_path / "again/README.md").read_text()


def test_a_run_on_bytes_has_a_tokenizer_that_transformers_reads(
    convert: Convert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, types = tmp_path / "run", []

    def compare(stage: Path, say: Callable[[str], None]) -> Any:
        types.append(read(stage / "config.json")["model_type"])
        return open_written(stage, say)

    monkeypatch.setattr("mt_tools.convert.folder.open_written", compare)
    assert mt_train(["--model", "llama", "--train.steps", "1", "--data.read-rows", "3", "--output", str(run)]) == 0
    convert(run, tmp_path / "out")
    assert types == ["llama"], "transformers takes the class of the compared tokenizer from the model's type"
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "  naïve\nfaçade 日本 \t"
    assert tokenizer(text).input_ids == [256, *text.encode()], "it begins texts as the run did"
    assert tokenizer.decode(list(text.encode())) == text
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (256, 257, 258)
    generation = read(tmp_path / "out/generation_config.json")
    assert generation == {"bos_token_id": 256, "eos_token_id": 257, "pad_token_id": 258}


MEASURED = """
import sys, threading, time
from pathlib import Path
import torch
from mt_tools.cli.convert import main
def anonymous():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024
main(["--model", "llama", sys.argv[2], sys.argv[4]])  # what is imported only once
before, peak, ended = anonymous(), 0, False
def watch():
    global peak
    while not ended:
        peak = max(peak, anonymous())
        time.sleep(0.002)
thread = threading.Thread(target=watch)
thread.start()
code = main([sys.argv[1], sys.argv[3], "--shard-size", "48MB", "--dtype", "fp32"])
ended = True
thread.join()
print(code, peak - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="RssAnon is told by Linux only")
def test_memory_stays_below_the_largest_shard(
    pretrain: Callable[..., Path], pretrained_folder: Path, tmp_path: Path
) -> None:
    source = pretrain(shard="24MB", hidden_size=1024, intermediate_size=4096, num_hidden_layers=3, dtype="bfloat16")
    largest = max(path.stat().st_size for path in source.glob("*.safetensors"))
    assert sum(path.stat().st_size for path in source.glob("*.safetensors")) > 3 * largest
    paths = [source, pretrained_folder, tmp_path / "out", tmp_path / "warm"]
    words = [sys.executable, "-c", MEASURED, *map(str, paths)]
    said = subprocess.run(words, capture_output=True, text=True, timeout=600, check=True).stdout.splitlines()[-1]
    code, grown = map(int, said.split())
    written = max(path.stat().st_size for path in (tmp_path / "out").glob("*.safetensors"))
    assert code == 0
    print(f"RssAnon grew by {grown / 1e6:.0f} MB, largest shard {largest / 1e6:.0f} MB")
    assert grown < 1.2 * largest < 1.2 * written, f"{grown / 1e6:.0f} MB for shards of {largest / 1e6:.0f} MB"


def test_nothing_is_overwritten(pretrained_folder: Path, convert: Convert, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine").write_text("mine")
    assert "is not empty; choose another folder" in convert(pretrained_folder, tmp_path / "out", fails=True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]
    (tmp_path / "new.partial").mkdir()
    assert "from a writer that was cut off; remove it" in convert(pretrained_folder, tmp_path / "new", fails=True)
    assert "--shard-size is a number and a unit" in convert(
        pretrained_folder, tmp_path / "x", "--shard-size", "5 apples", fails=True
    )


def test_a_run_with_another_tokenizer_than_its_weights_ends_texts_by_its_own_tokens_alone(
    convert: Convert, tmp_path: Path
) -> None:
    """The base's end token 257 is an ordinary one in the tokenizer that the run was trained with."""
    small = {"train": {"steps": 1, "sequence_len": 32}, "data": {"eval": "none", "read_rows": 8}}
    train({"model": {"name": "llama", "n_layers": 1}, **small}, output=tmp_path / "first")
    convert(tmp_path / "first", tmp_path / "base")
    assert json.loads((tmp_path / "base/generation_config.json").read_text())["eos_token_id"] == 257
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=272, special_tokens=["<end>", "<pad>"], initial_alphabet=letters)
    inner.train_from_iterator(["the quick brown fox jumps over the lazy dog"] * 9, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>", pad_token="<pad>")
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    own = {"name": "huggingface", "path": str(tmp_path / "tokenizer")}
    train({"model": {"weights": str(tmp_path / "base")}, "tokenizer": own, **small}, output=tmp_path / "run")
    assert load_run(tmp_path / "run").eos_ids == (0,)
    convert(tmp_path / "run", tmp_path / "out")
    written = json.loads((tmp_path / "out/generation_config.json").read_text())
    assert written["eos_token_id"] == 0
    assert "bos_token_id" not in written, "it has none; 256 was that of the base"


def test_a_run_with_a_copy_of_its_weights_tokenizer_keeps_their_end_tokens(convert: Convert, tmp_path: Path) -> None:
    small = {"train": {"steps": 1, "sequence_len": 32}, "data": {"eval": "none", "read_rows": 8}}
    train({"model": {"name": "llama", "n_layers": 1}, **small}, output=tmp_path / "first")
    convert(tmp_path / "first", tmp_path / "base")
    (tmp_path / "base/generation_config.json").write_text(json.dumps({"eos_token_id": [257, 97]}))
    shutil.copytree(tmp_path / "base", tmp_path / "copy")
    own = {"name": "huggingface", "path": str(tmp_path / "copy")}
    train({"model": {"weights": str(tmp_path / "base")}, "tokenizer": own, **small}, output=tmp_path / "run")
    assert load_run(tmp_path / "run").eos_ids == (257, 97)
    convert(tmp_path / "run", tmp_path / "out")
    assert json.loads((tmp_path / "out/generation_config.json").read_text())["eos_token_id"] == [257, 97]
