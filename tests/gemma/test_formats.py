"""Weights come and go in Hugging Face's format, and never by executing anything."""

from __future__ import annotations

import json
import logging
import os
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    PreTrainedModel,
)

from mt_core.errors import WeightsError
from mt_core.nn import Batch
from mt_core.weights import CONFIG
from mt_plugin_gemma.config import GemmaConfig
from mt_plugin_gemma.export import their_config
from mt_plugin_gemma.huggingface import HUGGINGFACE, read_shape
from mt_plugin_gemma.model import Gemma
from mt_plugin_gemma.names import ARCHITECTURES
from mt_plugin_gemma.variants import VARIANTS
from mt_tools import save_folder, stage_folder, write_json, write_tensors
from mt_train.cli.train import main

GENERATIONS = ["1, plain", "2, window 7", "3, linear scaling"]


def load_model(folder: Path) -> Gemma:
    assert HUGGINGFACE.matches(folder)
    config = GemmaConfig(**HUGGINGFACE.values(folder))
    model = Gemma(config)
    found = {name: load() for name, load in HUGGINGFACE.tensors(folder, config).items()}
    assert set(found) == {name for name, _ in model.named_parameters()}
    model.load_state_dict(found, strict=False)
    return model


def assert_same(ours: Gemma, theirs: PreTrainedModel) -> None:
    ids = torch.arange(20)[None] % 48
    zeros = torch.zeros_like(ids)
    logits = ours.head(ours(Batch(ids, zeros, torch.arange(20)[None], zeros)))
    torch.testing.assert_close(logits, theirs(input_ids=ids).logits, atol=3e-5, rtol=1e-5)  # 5e-6 at worst, by kernels


def edit_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in config.items() if value != "removed"}))


# ------------------------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("how", ["whole", "shards", "bin"])
@pytest.mark.parametrize("name", GENERATIONS)
def test_a_folder_that_transformers_saved_gives_its_logits(
    name: str, how: str, pair: Callable[..., Any], tmp_path: Path
) -> None:
    ours, theirs = pair(name)
    theirs.save_pretrained(tmp_path, max_shard_size="60KB" if how == "shards" else "1GB")
    if how == "bin":
        (tmp_path / "model.safetensors").unlink()
        torch.save(theirs.state_dict(), tmp_path / "pytorch_model.bin")
    assert (len(list(tmp_path.glob("*.safetensors"))) > 2) == (how == "shards")
    again = load_model(tmp_path)
    assert again.config == ours.config
    assert_same(again, theirs)


def test_a_config_of_transformers_4_is_read(pair: Callable[..., Any], tmp_path: Path) -> None:
    """Without rope_parameters and layer_types."""
    _, theirs = pair("3, linear scaling")
    theirs.save_pretrained(tmp_path)
    edit_config(tmp_path, rope_parameters="removed", layer_types="removed", sliding_window_pattern=2)
    edit_config(tmp_path, rope_theta=1e6, rope_local_base_freq=1e4, rope_scaling={"rope_type": "linear", "factor": 8.0})
    assert_same(load_model(tmp_path), theirs)


PATTERNS = {
    "2, window 7": {"sliding_window_pattern": 3, "_sliding_window_pattern": 3},
    "3, window 5": {"sliding_window_pattern": "removed", "_sliding_window_pattern": 2},
    "3, window 1": {"sliding_window_pattern": 3},
}
"""Case → keys of a file without ``layer_types``, of which transformers reads the last one alone."""


@pytest.mark.parametrize("name", PATTERNS)
def test_global_blocks_without_layer_types_are_those_that_transformers_takes(
    name: str, pair: Callable[..., Any], tmp_path: Path
) -> None:
    pair(name)[1].save_pretrained(tmp_path)
    edit_config(tmp_path, layer_types="removed", **PATTERNS[name])
    assert_same(load_model(tmp_path), AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager"))


GOOGLES_4B = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {"hidden_size": 1152},
}
"""What https://huggingface.co/google/gemma-3-4b-pt/blob/main/config.json says of the text model, and no more."""


def test_what_googles_config_leaves_out_is_what_transformers_takes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GOOGLES_4B))
    assert GemmaConfig(**read_shape(tmp_path / CONFIG)) == GemmaConfig(**VARIANTS["3-4b"])


@pytest.mark.parametrize("names", ["old", "new"])
def test_the_text_model_of_a_multimodal_checkpoint_is_read_and_the_rest_is_said(
    names: str, pair: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, text = pair("3, linear scaling")
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 28, "patch_size": 14, "model_type": "siglip_vision_model"}
    config = Gemma3Config(text_config=text.config.to_dict(), vision_config=vision, mm_tokens_per_image=4)
    theirs = Gemma3ForConditionalGeneration(config).eval()
    theirs.save_pretrained(tmp_path)
    if names == "new":
        copies = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}
        save_file(copies, tmp_path / "model.safetensors", metadata={"format": "pt"})
    said: list[str] = []
    monkeypatch.setattr(logging.getLogger("mt_core"), "handle", lambda record: said.append(record.getMessage()))
    monkeypatch.setattr(logging.getLogger("mt_core.gemma"), "handle", lambda record: said.append(record.getMessage()))
    ours = load_model(tmp_path)
    assert_same(ours, theirs)
    (line,) = said
    assert "see images and are left out" in line
    assert "vision_tower" in line
    tensors = {name: partial(torch.clone, parameter) for name, parameter in ours.named_parameters()}
    save_folder(tmp_path / "text", tensors, their_config(ours.config))
    assert json.loads((tmp_path / "text/config.json").read_text())["architectures"] == ["Gemma3ForCausalLM"]
    assert_same(ours, AutoModelForCausalLM.from_pretrained(tmp_path / "text"))


def test_a_head_that_is_not_the_embedding_is_refused(pair: Callable[..., Any], tmp_path: Path) -> None:
    ours, theirs = pair("1, plain")
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "lm_head.weight": torch.zeros(61, 64)}, tmp_path / "model.safetensors")
    load = HUGGINGFACE.tensors(tmp_path, ours.config)["model.embed_tokens.weight"]
    with pytest.raises(WeightsError, match=r"ties lm_head\.weight .* different values"):
        load()


# ------------------------------------------------------------------------------------------------------------- writing


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shard", [4 * 10**9, 60_000])
@pytest.mark.parametrize("name", GENERATIONS)
def test_what_is_read_and_written_is_equal_bit_for_bit_and_transformers_opens_it(
    name: str, shard: int, dtype: torch.dtype, pair: Callable[..., Any], tmp_path: Path
) -> None:
    ours, theirs = pair(name)
    theirs.to(dtype).save_pretrained(tmp_path / "in")
    config = GemmaConfig(**HUGGINGFACE.values(tmp_path / "in"))
    tensors = HUGGINGFACE.tensors(tmp_path / "in", config)
    with stage_folder(tmp_path / "out") as stage:
        said = write_tensors(stage, tensors, shard_bytes=shard)
        write_json(stage / CONFIG, {**their_config(config), "torch_dtype": said})
    again = HUGGINGFACE.tensors(tmp_path / "out", config)
    assert again.keys() == tensors.keys()
    for key, load in tensors.items():
        before, after = load(), again[key]()
        assert before.dtype == after.dtype == dtype
        assert torch.equal(before, after), key
    assert GemmaConfig(**HUGGINGFACE.values(tmp_path / "out")) == config == ours.config
    first, opened = (
        AutoModelForCausalLM.from_pretrained(tmp_path / folder, dtype=dtype, attn_implementation="eager")
        for folder in ("in", "out")
    )
    assert type(opened).__name__ == ARCHITECTURES[config.generation]
    ids = torch.arange(20)[None]
    assert torch.equal(opened(ids).logits, first(ids).logits)


@pytest.mark.parametrize("size", VARIANTS)
def test_every_size_is_described_so_that_it_and_transformers_read_the_same(size: str, tmp_path: Path) -> None:
    config = GemmaConfig(**VARIANTS[size])
    (tmp_path / "config.json").write_text(json.dumps(their_config(config)))
    again = GemmaConfig(**read_shape(tmp_path / CONFIG))
    assert again == config
    theirs = AutoConfig.from_pretrained(tmp_path)
    assert theirs.num_hidden_layers == config.n_layers
    if config.generation > 1:
        local = [kind == "sliding_attention" for kind in theirs.layer_types]
        assert local == [config.is_local(index) for index in range(config.n_layers)]
        assert theirs.query_pre_attn_scalar**-0.5 == config.scale


# ----------------------------------------------------------------------------------------------------------- bad input

REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "another model": ("1, plain", {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, "this family reads"),
    "untied": ("2, window 7", {"tie_word_embeddings": False}, "tie_word_embeddings=False, and True is supported"),
    "biases": ("3, window 5", {"attention_bias": True}, "attention_bias=True, and False is supported"),
    "exact gelu": ("2, window 7", {"hidden_activation": "gelu"}, "'gelu_pytorch_tanh' is supported"),
    "attention that is not causal": ("2, window 7", {"is_causal": False}, "is_causal=False"),
    "both directions": ("3, window 5", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
    "quantised": ("3, window 5", {"quantization_config": {"bits": 4}}, "only null is supported"),
    "a cap of scores in 3": ("3, window 5", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0"),
    "yarn": ("3, window 5", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn' where this family knows"),
    "linear in 2": ("2, window 7", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, "'linear' where"),
    "no factor": ("3, window 5", {"rope_scaling": {"rope_type": "linear"}}, "no factor"),
    "irregular blocks": (
        "2, window 7",
        {"layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]},
        "do not repeat",
    ),
    "a word for a number": ("1, plain", {"rms_norm_eps": "small"}, "wrong type"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_config_may_not_say_is_named_with_what_it_may(
    case: str, pair: Callable[..., Any], tmp_path: Path
) -> None:
    name, change, said = REFUSED[case]
    (tmp_path / "config.json").write_text(json.dumps(their_config(pair(name)[0].config) | change))
    with pytest.raises(WeightsError, match=said):
        read_shape(tmp_path / CONFIG)


class Canary:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("write", [torch.save, lambda content, path: path.write_bytes(pickle.dumps(content))])
def test_a_pickle_is_never_executed(write: Callable[..., Any], tmp_path: Path) -> None:
    config = GemmaConfig(**VARIANTS["1-tiny"])
    write({"w": Canary(tmp_path / "fired")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(WeightsError, match="cannot read"):
        HUGGINGFACE.tensors(tmp_path, config)
    assert not (tmp_path / "fired").exists()


@pytest.mark.parametrize("file", ["../outside.safetensors", "/etc/hostname", "link.safetensors", "gone.safetensors"])
def test_an_index_never_leads_out_of_its_folder(file: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"x": torch.zeros(1)}, str(tmp_path / "outside.safetensors"))
    (folder / "link.safetensors").symlink_to(tmp_path / "outside.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": file}}))
    with pytest.raises(WeightsError, match=r"outside|no regular file"):
        HUGGINGFACE.tensors(folder, GemmaConfig(**VARIANTS["1-tiny"]))


@pytest.mark.parametrize("damage", ["truncated", "shard gone", "tensor gone"])
def test_damaged_weights_are_one_error_before_anything_is_trained(
    damage: str, pair: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair("3, window 5", vocab_size=272)[1].save_pretrained(tmp_path, max_shard_size="60KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    if damage == "truncated":
        shard.write_bytes(shard.read_bytes()[:-100])
    elif damage == "shard gone":
        shard.unlink()
    else:
        tensors = load_file(shard)
        tensors.popitem()
        save_file(tensors, str(shard))
    words = ["--model", "gemma", "--model.weights", str(tmp_path), "--train.steps", "1", "--output", "none"]
    assert main([*words, "--train.sequence-len", "32"]) == 2
    error = capsys.readouterr().err
    assert shard.name in error or "lacks tensors that its index lists" in error
    assert "Traceback" not in error


def test_a_run_starts_from_weights_in_their_own_shape(
    pair: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair("3, window 5", vocab_size=272)[1].save_pretrained(tmp_path)
    words = ["--model", "gemma", "--model.weights", str(tmp_path), "--output", "none", "--train.sequence-len", "32"]
    assert main([*words, "--print-config"]) == 0
    assert "window: 5" in capsys.readouterr().out
    assert main([*words, "--train.steps", "1"]) == 0
