"""Tokenizers that are trained on the spot, on Python's own help texts."""

from __future__ import annotations

import json
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest

from mt_plugin_standard import plugin

HOOKS = {
    "dataset": plugin.mt_datasets,
    "tokenizer": plugin.mt_tokenizers,
    "objective": plugin.mt_objectives,
    "adapter": plugin.mt_adapters,
    "optimizer": plugin.mt_optimizers,
    "schedule": plugin.mt_schedules,
    "task_print": plugin.mt_task_prints,
}


@pytest.fixture(scope="session")
def component() -> Any:
    """``component(kind, name)``: a built-in as the host finds it."""

    def find(kind: str, name: str) -> Any:
        return next(component for component in HOOKS[kind]() if component.name == name)

    return find


@pytest.fixture(scope="session")
def build(component: Any) -> Any:
    """``build(kind, name, config values, **arguments)``: what a run would get."""

    def make(kind: str, name: str, values: dict[str, Any] | None = None, *positional: Any, **named: Any) -> Any:
        chosen = component(kind, name)
        return chosen.build(chosen.config(**(values or {})), *positional, **named)

    return make


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Some hundred lines of real English."""
    return [line for name in sorted(topics) for line in topics[name].splitlines() if line.strip()][:500]


@pytest.fixture(scope="session")
def sentencepiece_file(train_sentencepiece: Any, texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 600 pieces."""
    file = tmp_path_factory.mktemp("sentencepiece") / "tokenizer.model"
    return train_sentencepiece(file, texts, 600)  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def huggingface_file(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bare ``tokenizer.json``: byte-level BPE, as GPT-2's and Llama 3's."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, processors, trainers

    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    # many a published tokenizer adds special tokens by itself, and cleans up spaces
    specials = [("<s>", 0), ("</s>", 1)]
    inner.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=specials)
    file = tmp_path_factory.mktemp("huggingface") / "tokenizer.json"
    inner.save(str(file))
    return file


@pytest.fixture(scope="session")
def huggingface_folder(huggingface_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a config that names special tokens and a chat template."""
    folder = tmp_path_factory.mktemp("folder")
    (folder / "tokenizer.json").write_bytes(huggingface_file.read_bytes())
    config = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "chat_template": "{{ messages }}",
        "clean_up_tokenization_spaces": True,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def tokenizers(build: Any, sentencepiece_file: Path, huggingface_folder: Path) -> dict[str, Any]:
    """One tokenizer of each kind."""
    return {
        "byte": build("tokenizer", "byte"),
        "sentencepiece": build("tokenizer", "sentencepiece", {"path": str(sentencepiece_file)}),
        "huggingface": build("tokenizer", "huggingface", {"path": str(huggingface_folder)}),
    }


KINDS = ("byte", "sentencepiece", "huggingface")


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest, tokenizers: dict[str, Any]) -> Any:
    """Each kind of tokenizer in turn."""
    return tokenizers[request.param]
