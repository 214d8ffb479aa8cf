"""Weights by name: from the Hub's cache, and a message that helps where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from mt_core.config.files import read_config

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SHAPE = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache as ``hf download org/tiny`` leaves it."""
    home = tmp_path_factory.mktemp("hub")
    entry = home / "hub" / "models--org--tiny"
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, vocab_size=300, max_position_embeddings=64))
    model.save_pretrained(entry / "snapshots" / COMMIT)
    (entry / "refs").mkdir()
    (entry / "refs" / "main").write_text(COMMIT)
    return home


def train(home: Path, folder: Path, weights: str) -> subprocess.CompletedProcess[str]:
    words = ["--model", "llama", "--model.weights", weights, "--train.steps", "1", "--train.sequence-len", "32"]
    return subprocess.run(
        [sys.executable, "-m", "mt_core.cli.train", *words, "--output", "run"],
        env={**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("name", ["org/tiny", f"org/tiny@{COMMIT}", "org/tiny@main"])
def test_a_cached_model_is_used_by_its_name(name: str, home: Path, tmp_path: Path) -> None:
    result = train(home, tmp_path, name)
    assert result.returncode == 0, result.stderr
    config = read_config(tmp_path / "run" / "run.yaml")["model"]
    assert (config["weights"], config["dim"], config["vocab_size"]) == (name, 32, 300)


@pytest.mark.parametrize("name", ["org/other", "org/tiny@v2"])
def test_without_network_and_cache_the_message_names_the_cache(name: str, home: Path, tmp_path: Path) -> None:
    result = train(home, tmp_path, name)
    assert result.returncode == 2
    for words in (f"{name} is no path here, not in the cache", str(home / "hub"), "HF_HOME", "hf download org/"):
        assert words in result.stderr
    assert "Traceback" not in result.stderr
