"""The sampler beside vLLM itself, where that is installed and has a GPU."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import torch

from mt_conformance.sampler import KitPolicy
from mt_core.generation import GenerationConfig, SamplingRules
from mt_plugin_vllm.config import VllmConfig
from mt_plugin_vllm.errors import OtherWeightsError
from mt_plugin_vllm.sampler import VllmSampler
from mt_train import LoadedModel, load_weights

pytestmark = pytest.mark.skipif(shutil.which("vllm") is None, reason="vLLM is not installed")

STARTS = 600.0
"""Seconds that the server may take to be there."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama as transformers writes it; heads are as wide as vLLM's kernels take them."""
    transformers = pytest.importorskip("transformers")
    path = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    shape = {"vocab_size": 272, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, **heads, eos_token_id=2)).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    """The address of a server of that model."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["vllm", "serve", str(folder), "--port", str(port), "--skip-tokenizer-init", "--dtype", "float32"]
    words += ["--logprobs-mode", "processed_logprobs", "--max-model-len", "128", "--enforce-eager"]
    with subprocess.Popen(words, env={**os.environ, "VLLM_SERVER_DEV_MODE": "1"}) as server:
        try:
            _wait(f"http://127.0.0.1:{port}/health", server)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def _wait(address: str, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + STARTS
    while time.monotonic() < end:
        assert server.poll() is None, "vllm serve has ended"
        try:
            with urlopen(address, timeout=5):
                return
        except (URLError, OSError):
            time.sleep(1)
    raise AssertionError("vllm serve does not answer")


@pytest.fixture
def model(folder: Path) -> LoadedModel:
    return load_weights("llama", folder)


@pytest.mark.needs("mt-plugin-llama")
def test_it_writes_with_the_weights_of_each_version(url: str, model: LoadedModel, tmp_path: Path) -> None:
    """What is compared after each reload and of each iteration's answers is compared here with the real thing."""
    policy = KitPolicy(model)
    asks = VllmSampler(VllmConfig(url=url, folder=tmp_path / "weights", tolerance=0.01))
    config = GenerationConfig(rules=SamplingRules(temperature=0.7), max_new_tokens=12, logprobs=True)
    for _ in range(2):
        answers = asks.sample(policy, [[5, 9, 3], [5, 9, 3], [8, 7]], config)
        assert [len(each.ids) <= 12 for each in answers] == [True] * 3
        policy.train()


@pytest.mark.needs("mt-plugin-llama")
def test_a_reload_that_does_not_happen_is_found(
    url: str, model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = KitPolicy(model)
    asks = VllmSampler(VllmConfig(url=url, folder=tmp_path / "weights"))
    asks.sample(policy, [[5, 9, 3]], GenerationConfig(max_new_tokens=4))
    monkeypatch.setattr(asks._server, "reload", lambda folder: None)
    policy.train()
    with pytest.raises(OtherWeightsError):
        asks.sample(policy, [[5, 9, 3]], GenerationConfig(max_new_tokens=4))
