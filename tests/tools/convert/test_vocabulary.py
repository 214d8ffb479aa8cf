"""New tokens: tokenizer, embedding and head in step, in a folder and at the start of a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from mt_core.nn import TokenObjective
from mt_core.rows import Sample
from mt_plugin_llama.config import LlamaConfig
from mt_plugin_llama.model import Llama
from mt_tools.cli.generate import main as mt_generate
from mt_train.cli.train import main as mt_train
from mt_train.engine.new_rows import NewRows

Convert = Callable[..., str]
PER_TOKEN = ("model.embed_tokens.weight", "lm_head.weight")


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("init", ["mean", "subtokens", "normal"])
def test_tokenizer_embedding_and_head_grow_together(
    init: str, tied: bool, pretrain: Callable[..., Path], convert: Convert, tmp_path: Path
) -> None:
    source = pretrain(tie_word_embeddings=tied)
    words = ["--add-tokens", "Paris,capital of", "--pad-token", "<pad>", "--init", init, "--multiple", "64"]
    said = convert("resize-vocab", source, tmp_path / "out", *words)
    assert "320 tokens" in said
    before, after = tensors(source), tensors(tmp_path / "out")
    old, new = AutoTokenizer.from_pretrained(source), AutoTokenizer.from_pretrained(tmp_path / "out")
    size = len(old)
    assert new.convert_tokens_to_ids(["Paris", "capital of", "<pad>"]) == [size, size + 1, size + 2]
    assert new("capital of Paris").input_ids == [size + 1, *old(" ").input_ids, size]
    assert new.pad_token_id == size + 2
    assert set(after) == set(before)
    for name, value in before.items():
        if name not in PER_TOKEN:
            assert torch.equal(value, after[name]), name
            continue
        grown, mean = after[name], value.mean(0)
        assert grown.shape == (320, 32)
        assert torch.equal(grown[:size], value)
        expected = value[old("capital of").input_ids].mean(0) if init == "subtokens" else mean
        if init == "normal":
            assert not torch.equal(grown[size], grown[size + 1])
            assert ((grown[size : size + 3] - mean).abs() < 5 * value.std(0)).all()
        else:
            torch.testing.assert_close(grown[size + 1], expected)
        torch.testing.assert_close(grown[size + 3], mean)
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert (config["vocab_size"], config["pad_token_id"], config["tie_word_embeddings"]) == (320, size + 2, tied)
    assert json.loads((tmp_path / "out/generation_config.json").read_text())["pad_token_id"] == size + 2
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    known = torch.arange(40)[None]
    theirs = AutoModelForCausalLM.from_pretrained(source)(known).logits
    assert torch.equal(model(known).logits[..., :size], theirs)


def test_the_same_seed_draws_the_same_rows_and_the_spread_is_that_of_each_channel() -> None:
    torch.manual_seed(0)
    old = torch.randn(500, 8) * torch.arange(1.0, 9.0) + torch.arange(8.0)
    rows = NewRows(added=dict.fromkeys(range(500, 4500), ()), size=4500, init="normal", seed=3)
    grown = rows.put("embed", lambda: old)()
    assert torch.equal(grown, rows.put("embed", lambda: old)())
    assert not torch.equal(grown, rows.put("head", lambda: old)())
    torch.testing.assert_close(grown[500:].mean(0), old.mean(0), atol=0.5, rtol=0.1)
    torch.testing.assert_close(grown[500:].std(0), old.std(0), atol=0.1, rtol=0.1)


def test_tokens_come_from_a_file_and_known_ones_are_not_added_again(
    pretrained_folder: Path, convert: Convert, tmp_path: Path
) -> None:
    (tmp_path / "tokens.txt").write_text("[INST]\n\n<s>\n日本, ja\n", encoding="utf-8")
    convert("resize-vocab", pretrained_folder, tmp_path / "out", "--tokens-file", tmp_path / "tokens.txt")
    old, new = AutoTokenizer.from_pretrained(pretrained_folder), AutoTokenizer.from_pretrained(tmp_path / "out")
    assert len(new) == len(old) + 2
    assert new.tokenize("<s>[INST]日本, ja") == ["<s>", "[INST]", "日本, ja"]
    assert "nothing to add" in convert("resize-vocab", pretrained_folder, tmp_path / "x", "--init", "mean", fails=True)


def run(folder: Path, output: Path, *more: str) -> int:
    rows = output.parent / "rows.jsonl"
    turns = [{"role": "user", "content": "What is the capital?"}, {"role": "assistant", "content": "Paris <|user|>"}]
    rows.write_text((json.dumps({"messages": turns}) + "\n") * 12)
    words = ["--model", "llama", "--model.weights", str(folder), "--objective", "sft", "--output", str(output)]
    words += ["--dataset", "jsonl", "--dataset.path", str(rows), "--train.sequence-len", "96", "--train.steps", "2"]
    return mt_train([*words, "--checkpoint.every-steps", "1", "--eval.samples", "0", *more])


GROWN = ["--tokenizer.add-tokens", "[INST],capital", "--tokenizer.add-special-tokens", "<|pause|>"]


@pytest.mark.parametrize("tied", [False, True])
def test_a_run_adds_tokens_goes_on_and_answers(
    tied: bool,
    pretrain: Callable[..., Path],
    convert: Convert,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = pretrain(tie_word_embeddings=tied)
    whole, part = tmp_path / "whole", tmp_path / "part"
    more = [*GROWN, "--tokenizer.pad-token", "[PAD]", "--optimizer.lr", "1e-3"]
    assert run(source, whole, *more) == 0
    assert "4 tokens are new" in capsys.readouterr().err
    size = len(AutoTokenizer.from_pretrained(source))
    assert f"vocab_size: {size + 4}" in (whole / "run.yaml").read_text()
    assert run(source, part, *more, "--train.max-minutes", "0.000001") == 75
    assert mt_train(["--resume", str(part), "--train.max-minutes", "none"]) == 0
    final = "checkpoints/step-00000002/model"
    one, two = tensors(whole / final), tensors(part / final)
    assert one[PER_TOKEN[0]].shape[0] == size + 4
    assert all(torch.equal(value, two[name]) for name, value in one.items()), "resumed and uninterrupted agree"
    capsys.readouterr()
    assert mt_generate(["--run", str(whole), "--prompt", "What", "--max-new-tokens", "4", "--greedy"]) == 0
    capsys.readouterr()
    convert(whole, tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.pad_token_id == size + 3
    assert tokenizer.tokenize("[INST]") == ["[INST]"]
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").config.vocab_size == size + 4


def test_zero_3_starts_with_the_same_rows(pretrained_folder: Path, tmp_path: Path) -> None:
    """Steps too small to move a weight in fp32 leave what the run started with."""
    final = "checkpoints/step-00000002/model"
    more = [*GROWN, "--optimizer.lr", "1e-20", "--tokenizer.init", "normal"]
    for stage in ("0", "3"):
        assert run(pretrained_folder, tmp_path / stage, *more, "--parallel.zero-stage", stage) == 0
    one, two = tensors(tmp_path / "0" / final), tensors(tmp_path / "3" / final)
    assert all(torch.equal(value, two[name]) for name, value in one.items())


def test_padding_without_a_pad_token_moves_no_row_of_the_embedding_and_no_weight() -> None:
    """What fills a row where the tokenizer has no pad token is id 0, whatever that is: nothing is learned from it."""
    torch.manual_seed(0)
    model = Llama(LlamaConfig(vocab_size=16, dim=8, ffn_dim=16, n_layers=1, n_heads=2, n_kv_heads=1, max_seq_len=16))
    objective = TokenObjective()
    sample = Sample([3, 4, 5, 6], [False, True, True, True], "row 1")
    gradients = []
    for length in (4, 12):
        model.zero_grad()
        batch = objective.collate([[sample]], length=length)
        objective.loss(model(batch), model.head, batch).loss_sum.backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    embedding = gradients[1]["model.embed_tokens.weight"]
    assert embedding is not None
    assert not embedding[0].any()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], msg=name)
