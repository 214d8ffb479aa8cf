"""A small pretrained Llama with tokenizer and chat template, as ``save_pretrained`` writes it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mt_tools.cli.convert import main
from mt_tools.cli.export import main as mt_export
from mt_train.cli.train import main as mt_train

sys.path.insert(0, str(Path(__file__).parent))  # for adapter_folders

SPECIAL = ["<s>", "</s>", "<|user|>", "<|assistant|>"]
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)


@pytest.fixture(scope="session")
def pretrain(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``pretrain(shard="5GB", **config)``: a new folder with other values of the config."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    def make(shard: str = "5GB", **more: Any) -> Path:
        folder = tmp_path_factory.mktemp("pretrained") / "my-llama"
        inner = Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=280, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
        )
        inner.train_from_iterator(["What is the capital of France? Paris."] * 4, trainer)
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")
        tokenizer.chat_template = TEMPLATE
        tokenizer.save_pretrained(folder)
        torch.manual_seed(0)
        shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
        shape |= {"vocab_size": len(tokenizer), "num_key_value_heads": 1, "max_position_embeddings": 512}
        ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
        model = LlamaForCausalLM(LlamaConfig(**{**shape, **ends, **more}))
        model.to(getattr(torch, more.get("dtype", "float32")))
        model.save_pretrained(folder, max_shard_size=shard)
        return folder

    return make


@pytest.fixture(scope="session")
def pretrained_folder(pretrain: Callable[..., Path]) -> Path:
    return pretrain()


@pytest.fixture
def convert(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """``convert(words …)``: what ``mt-convert`` printed; ``fails=True`` asks for an error and gives its text."""

    def run(*words: object, fails: bool = False) -> str:
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert (code != 0) == fails, err
        return err if fails else out

    return run


@pytest.fixture(scope="session")
def train(pretrained_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``train(words …)``: a short run over the small Llama."""
    folder = tmp_path_factory.mktemp("runs")

    def run(*words: object, weights: Path | str = pretrained_folder, lr: str = "1e-2") -> Path:
        out = folder / f"run-{len(list(folder.iterdir()))}"
        from adapter_folders import QUIET, TRAIN

        argv = [
            "--model",
            "llama",
            "--model.weights",
            weights,
            *TRAIN,
            *QUIET,
            "--optimizer.lr",
            lr,
            *words,
            "--output",
            out,
        ]
        assert mt_train([str(word) for word in argv]) == 0
        return out

    return run


@pytest.fixture
def export(capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """``export(words …)``: what ``mt-export`` printed; ``fails=True`` asks for an error and gives its text."""

    def run(*words: object, fails: bool = False) -> str:
        capfd.readouterr()
        code = mt_export([str(word) for word in words])
        out, err = capfd.readouterr()
        assert (code != 0) == fails, err
        return err if fails else out + err

    return run
