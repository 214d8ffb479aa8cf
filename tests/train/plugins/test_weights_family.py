"""A folder of weights says whose it is: the family that names its architecture, else the fallback, else what to install."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from mt_core.errors import ConfigError, WeightsError
from mt_core.plugins.host import PluginHost
from mt_core.plugins.metadata import Selection
from mt_train.config.run import RunConfig
from mt_train.plugins.resolve import resolve
from mt_train.plugins.weights_family import family_of

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "max_position_embeddings": 512}
GRANITE = {"architectures": ["GraniteForCausalLM"], "model_type": "granite", "max_position_embeddings": 512}
UNKNOWN = {"architectures": ["SproutForCausalLM"], "model_type": "sprout"}


def folder(path: Path, content: dict[str, Any]) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(content))
    save_file({"weight": torch.zeros(1)}, path / "model.safetensors")
    return path


@pytest.fixture(scope="module")
def host() -> PluginHost:
    return PluginHost.discover()


@pytest.fixture(scope="module")
def without_fallback() -> PluginHost:
    return PluginHost.discover(Selection(blocked=frozenset({"mt-plugin-huggingface"})))


def config_of(path: Path, host: PluginHost, **model: Any) -> RunConfig:
    return resolve({"model": {"weights": str(path), **model}}, host).config


def test_a_family_that_names_the_architecture_comes_before_the_fallback(host: PluginHost, tmp_path: Path) -> None:
    assert family_of(folder(tmp_path / "llama", LLAMA), host) == "llama"
    assert family_of(folder(tmp_path / "type", {"model_type": "llama"}), host) == "llama"


def test_the_fallback_reads_what_no_other_family_names(host: PluginHost, tmp_path: Path) -> None:
    assert family_of(folder(tmp_path / "granite", GRANITE), host) == "huggingface"


def test_a_run_that_names_no_family_has_that_of_its_weights(host: PluginHost, tmp_path: Path) -> None:
    assert config_of(folder(tmp_path / "llama", LLAMA), host).model.name == "llama"
    assert config_of(folder(tmp_path / "granite", GRANITE), host).model.name == "huggingface"


def test_a_family_that_is_named_wins(host: PluginHost, tmp_path: Path) -> None:
    assert config_of(folder(tmp_path / "llama", LLAMA), host, name="huggingface").model.name == "huggingface"


def test_a_family_that_refuses_a_folder_names_the_one_that_reads_it(host: PluginHost, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(folder(tmp_path / "granite", GRANITE), host, name="llama")
    assert "describes GraniteForCausalLM; this family reads LlamaForCausalLM" in str(caught.value)
    assert "The family huggingface reads it: --model huggingface, or leave --model out." in str(caught.value)


def test_a_family_that_refuses_what_it_was_found_for_names_the_fallback_without_leaving_it_out(
    host: PluginHost, tmp_path: Path
) -> None:
    """Without ``--model`` the run would come back to it."""
    path = folder(tmp_path / "llama", {**LLAMA, "vocab_size": 64, "hidden_act": "gelu"})
    with pytest.raises(ConfigError) as caught:
        config_of(path, host)
    assert str(caught.value).endswith("The family huggingface reads it: --model huggingface.")


def test_a_model_of_one_document_a_row_is_padded_where_nobody_says_otherwise(host: PluginHost, tmp_path: Path) -> None:
    """Commands without rows have no option for it."""
    bloom = {"architectures": ["BloomForCausalLM"], "model_type": "bloom", "vocab_size": 64}
    config = config_of(folder(tmp_path / "bloom", bloom), host)
    assert config.data.batching == "padding"
    assert config_of(folder(tmp_path / "granite", GRANITE), host, name="huggingface").data.batching == "packing"


def test_without_the_fallback_its_distribution_is_named(without_fallback: PluginHost, tmp_path: Path) -> None:
    path = folder(tmp_path / "granite", GRANITE)
    with pytest.raises(ConfigError, match="`pip install mt-plugin-huggingface` brings a family that reads most others"):
        config_of(path, without_fallback, name="llama")
    with pytest.raises(ConfigError, match=r"describes GraniteForCausalLM.*pip install mt-plugin-huggingface"):
        config_of(path, without_fallback)


def test_a_type_that_nobody_knows_is_refused_by_the_fallback_with_what_it_knows(
    host: PluginHost, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"the model type 'sprout' is unknown here\. .*Trained are afmoe, "):
        config_of(folder(tmp_path / "sprout", UNKNOWN), host)


def test_a_folder_without_weights_is_no_folder_of_a_family(host: PluginHost, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(WeightsError, match="holds no weights in a format that is read here"):
        family_of(tmp_path, host)
    with pytest.raises(ConfigError, match="does not exist"):
        config_of(tmp_path / "nothing", host)


def test_parts_without_their_index_are_told_apart_from_a_folder_without_weights(
    host: PluginHost, tmp_path: Path
) -> None:
    path = folder(tmp_path / "granite", GRANITE)
    (path / "model.safetensors").rename(path / "model-00001-of-00002.safetensors")
    with pytest.raises(ConfigError, match=r"parts \(model-00001.*no model\.safetensors\.index\.json"):
        config_of(path, host)
    (path / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"it has config\.json and no \*\.safetensors"):
        config_of(path, host)


def test_without_weights_a_family_is_required(host: PluginHost) -> None:
    with pytest.raises(ConfigError, match="model: is required"):
        resolve({}, host)
