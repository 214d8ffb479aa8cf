"""Weights come and go in Hugging Face's format; what the family does not do is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, Qwen3MoeConfig

from mt_core.errors import WeightsError
from mt_core.nn import Batch
from mt_core.weights import CONFIG, fused_experts, read_config
from mt_plugin_qwen.config import QwenConfig
from mt_plugin_qwen.huggingface import ARCHITECTURES, HUGGINGFACE
from mt_plugin_qwen.model import Qwen
from mt_plugin_qwen.variants import VARIANTS
from mt_tools import stage_folder, write_json, write_tensors
from mt_tools.cli.convert import main as convert
from mt_train.cli.train import main

KINDS = ["2.5, tied", "2.5, window 7 from block 1", "3, tied", "3, YaRN", "3, experts in some blocks, window 5"]


def load_model(folder: Path) -> Qwen:
    assert HUGGINGFACE.matches(folder)
    config = QwenConfig(**HUGGINGFACE.values(folder))
    model = Qwen(config)
    loaders = fused_experts(HUGGINGFACE.tensors(folder, config), config.expert_layouts)
    found = {name: load() for name, load in loaders.items()}
    assert set(found) == {name for name, _ in model.named_parameters()}
    model.load_state_dict(found, strict=False)
    return model


def assert_same(ours: Qwen, theirs: PreTrainedModel) -> None:
    ids = torch.arange(20)[None]
    zeros = torch.zeros_like(ids)
    logits = ours.head(ours(Batch(ids, zeros, ids, zeros)))
    torch.testing.assert_close(logits, theirs(input_ids=ids).logits, atol=3e-5, rtol=1e-5)  # 5e-6 at worst, by kernels


# ------------------------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("how", ["whole", "shards", "bin"])
@pytest.mark.parametrize("name", KINDS)
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


def test_a_tied_head_that_a_file_repeats_is_read_once_and_another_one_is_refused(
    pair: Callable[..., Any], tmp_path: Path
) -> None:
    """The published Qwen3-0.6B has both."""
    ours, theirs = pair("3, tied")
    theirs.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, file)
    assert_same(load_model(tmp_path), theirs)
    save_file({**tensors, "lm_head.weight": torch.zeros(61, 64)}, file)
    load = HUGGINGFACE.tensors(tmp_path, ours.config)["model.embed_tokens.weight"]
    with pytest.raises(WeightsError, match=r"ties lm_head\.weight .* different values"):
        load()


PUBLISHED: dict[str, dict[str, Any]] = {
    "2.5-7b": {
        "architectures": ["Qwen2ForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": 151643,
        "eos_token_id": 151643,
        "hidden_act": "silu",
        "hidden_size": 3584,
        "initializer_range": 0.02,
        "intermediate_size": 18944,
        "max_position_embeddings": 131072,
        "max_window_layers": 28,
        "model_type": "qwen2",
        "num_attention_heads": 28,
        "num_hidden_layers": 28,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 131072,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_mrope": False,
        "use_sliding_window": False,
        "vocab_size": 152064,
    },
    "3-0.6b": {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 1024,
        "initializer_range": 0.02,
        "intermediate_size": 3072,
        "max_position_embeddings": 40960,
        "max_window_layers": 28,
        "model_type": "qwen3",
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "3-30b-a3b": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 151643,
        "decoder_sparse_step": 1,
        "eos_token_id": 151645,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "initializer_range": 0.02,
        "intermediate_size": 6144,
        "max_position_embeddings": 40960,
        "max_window_layers": 48,
        "mlp_only_layers": [],
        "model_type": "qwen3_moe",
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "num_attention_heads": 32,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "output_router_logits": False,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.001,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
}
"""``config.json`` of https://huggingface.co/Qwen/Qwen2.5-7B, https://huggingface.co/Qwen/Qwen3-0.6B and https://huggingface.co/Qwen/Qwen3-30B-A3B."""


@pytest.mark.parametrize("size", PUBLISHED)
def test_a_published_config_is_the_size_of_its_name(size: str, tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(json.dumps(PUBLISHED[size]))
    assert QwenConfig(**read_config(tmp_path / CONFIG, ARCHITECTURES)) == QwenConfig(**VARIANTS[size])


def test_a_window_that_is_not_used_is_none(tmp_path: Path) -> None:
    """The instructed models name a window, and the block from which it would hold."""
    (tmp_path / CONFIG).write_text(json.dumps(PUBLISHED["2.5-7b"] | {"max_window_layers": 21}))
    assert QwenConfig(**read_config(tmp_path / CONFIG, ARCHITECTURES)).window is None


@pytest.mark.parametrize("kind", ["type", "rope_type"])
def test_yarn_is_read_as_the_model_pages_write_it(kind: str, tmp_path: Path) -> None:
    """https://huggingface.co/Qwen/Qwen2.5-7B-Instruct#processing-long-texts; without an original length it is the config's."""
    scaling = {kind: "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    (tmp_path / CONFIG).write_text(json.dumps(PUBLISHED["2.5-7b"] | {"rope_scaling": scaling}))
    read = QwenConfig(**read_config(tmp_path / CONFIG, ARCHITECTURES)).rope_scaling
    assert (read.type, read.factor, read.original_max_seq_len) == ("yarn", 4.0, 32768)
    (tmp_path / CONFIG).write_text(json.dumps(PUBLISHED["3-0.6b"] | {"rope_scaling": {kind: "yarn", "factor": 4.0}}))
    assert QwenConfig(**read_config(tmp_path / CONFIG, ARCHITECTURES)).rope_scaling.original_max_seq_len == 40960


@pytest.mark.parametrize(("coefficient", "used", "balance"), [(0.001, False, 0.0), (0.01, True, 0.08)])
def test_the_balance_loss_is_used_where_the_config_returns_router_logits(
    coefficient: float, used: bool, balance: float, tmp_path: Path
) -> None:
    """Theirs is 8 where the load of 8 experts a token is even, ours 1."""
    said = {"output_router_logits": used, "router_aux_loss_coef": coefficient}
    config = {**HUGGINGFACE.exported(QwenConfig(**VARIANTS["3-30b-a3b"])), **said}
    (tmp_path / CONFIG).write_text(json.dumps(config))
    read = QwenConfig(**read_config(tmp_path / CONFIG, ARCHITECTURES))
    assert read.balance == pytest.approx(balance)
    again = HUGGINGFACE.exported(read)
    assert (again["output_router_logits"], again["router_aux_loss_coef"]) == (used, coefficient)


# ------------------------------------------------------------------------------------------------------------- writing


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shard", [4 * 10**9, 60_000])
@pytest.mark.parametrize("name", KINDS)
def test_what_is_read_and_written_is_equal_bit_for_bit_and_transformers_opens_it(
    name: str, shard: int, dtype: torch.dtype, pair: Callable[..., Any], tmp_path: Path
) -> None:
    ours, theirs = pair(name)
    theirs.to(dtype).save_pretrained(tmp_path / "in")
    config = QwenConfig(**HUGGINGFACE.values(tmp_path / "in"))
    tensors = HUGGINGFACE.tensors(tmp_path / "in", config)
    with stage_folder(tmp_path / "out") as stage:
        said = write_tensors(stage, tensors, shard_bytes=shard)
        write_json(stage / CONFIG, {**HUGGINGFACE.exported(config), "torch_dtype": said})
    again = HUGGINGFACE.tensors(tmp_path / "out", config)
    assert again.keys() == tensors.keys()
    for key, load in tensors.items():
        before, after = load(), again[key]()
        assert before.dtype == after.dtype == dtype
        assert torch.equal(before, after), key
    assert QwenConfig(**HUGGINGFACE.values(tmp_path / "out")) == config == ours.config
    first, opened = (
        AutoModelForCausalLM.from_pretrained(tmp_path / folder, dtype=dtype, attn_implementation="eager")
        for folder in ("in", "out")
    )
    assert type(opened).__name__ == ARCHITECTURES[2 if config.n_experts else config.generation - 2].name
    ids = torch.arange(20)[None]
    assert torch.equal(opened(ids).logits, first(ids).logits)


@pytest.mark.parametrize("size", VARIANTS)
def test_every_size_is_described_so_that_it_and_transformers_read_the_same(size: str, tmp_path: Path) -> None:
    config = QwenConfig(**VARIANTS[size])
    (tmp_path / CONFIG).write_text(json.dumps(HUGGINGFACE.exported(config)))
    assert QwenConfig(**read_config(tmp_path / CONFIG, ARCHITECTURES)) == config
    theirs = AutoConfig.from_pretrained(tmp_path)
    assert (theirs.num_hidden_layers, theirs.head_dim) == (config.n_layers, config.head_dim)
    assert theirs.rope_parameters == {"rope_type": "default", "rope_theta": 1e6}
    assert set(getattr(theirs, "layer_types", ["full_attention"])) == {"full_attention"}
    if config.n_experts:
        sizes = theirs.num_experts, theirs.num_experts_per_tok, theirs.moe_intermediate_size, theirs.norm_topk_prob
        assert sizes == (config.n_experts, config.top_k, config.expert_dim, True)


@pytest.mark.parametrize("case", ["2.5, tied", "3, tied", "3, experts"])
def test_a_config_without_an_architecture_is_read_by_its_model_type(
    case: str, pair: Callable[..., Any], tmp_path: Path
) -> None:
    ours, theirs = pair(case)
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / CONFIG).read_text())
    (tmp_path / CONFIG).write_text(json.dumps({key: config[key] for key in config if key != "architectures"}))
    assert QwenConfig(**HUGGINGFACE.values(tmp_path)) == ours.config


# ----------------------------------------------------------------------------------------------------------- bad input

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "another model": ("3, tied", {"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM.* reads Qwen2"),
    "experts of 2": (
        "2.5, tied",
        {"architectures": ["Qwen2MoeForCausalLM"]},
        r"Qwen2MoeForCausalLM.*mixture of experts",
    ),
    "experts of 3 without their number": ("3, experts", {"num_experts": None}, "lacks num_experts"),
    "experts without their width": ("3, experts", {"moe_intermediate_size": None}, "lacks moe_intermediate_size"),
    "a window of some blocks with experts": (
        "3, experts",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
        "a window from block 2 on",
    ),
    "no architecture": ("3, tied", {"architectures": None, "model_type": None}, "describes no architecture"),
    "experts by type": (
        "2.5, tied",
        {"architectures": None, "model_type": "qwen2_moe"},
        "qwen2_moe.*mixture of experts",
    ),
    "biases in 3": ("3, tied", {"attention_bias": True}, r"attention_bias=True \(supported: False\)"),
    "gelu": ("2.5, tied", {"hidden_act": "gelu"}, r"hidden_act='gelu' \(supported: 'silu'\)"),
    "dropout": ("2.5, tied", {"attention_dropout": 0.1}, "attention_dropout=0.1"),
    "quantised": ("3, tied", {"quantization_config": {"bits": 4}}, "quantization_config="),
    "dynamic scaling": ("3, tied", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic'; this family"),
    "an unknown key": (
        "3, tied",
        {"rope_scaling": {**YARN, "short_factor": [1.0]}},
        "short_factor in a rotary scaling",
    ),
    "irregular blocks": ("2.5, tied", {"layer_types": ["sliding_attention", *["full_attention"] * 2]}, "layer_types="),
    "a word for a number": ("3, tied", {"num_hidden_layers": "three"}, "wrong type"),
    "a word for a scaling": ("3, tied", {"rope_scaling": "yarn"}, "wrong type"),
    "no width": ("3, tied", {"hidden_size": None}, "lacks hidden_size"),
    "no width of a head": ("3, tied", {"head_dim": None}, "lacks head_dim"),
}


def test_a_mixture_that_leaves_out_the_width_of_a_head_has_what_transformers_computes(tmp_path: Path) -> None:
    Qwen3MoeConfig(hidden_size=96, num_attention_heads=8).save_pretrained(tmp_path)
    assert "head_dim" not in json.loads((tmp_path / CONFIG).read_text())
    assert read_config(tmp_path / CONFIG, ARCHITECTURES)["head_dim"] == 12


def test_positions_of_images_are_read_and_written_with_the_text_model(pair: Callable[..., Any], tmp_path: Path) -> None:
    """As files of release 4 call them, and in both arrangements."""
    for name, more in (("2.5, tied", {}), ("3, tied", {"mrope_interleaved": True})):
        config = pair(name)[0].config
        half = config.head_dim // 2
        said = {"type": "mrope", "mrope_section": [half - 2 * (half // 4), half // 4, half // 4], **more}
        written = {**HUGGINGFACE.exported(config), "rope_scaling": said}
        (tmp_path / CONFIG).write_text(json.dumps(written))
        found = type(config)(**read_config(tmp_path / CONFIG, ARCHITECTURES))
        assert found.rope_scaling.sections == tuple(said["mrope_section"])
        assert found.rope_scaling.sections_interleaved == bool(more)
        again = HUGGINGFACE.exported(found)["rope_scaling"]
        assert again == {"rope_type": "default", "mrope_section": said["mrope_section"], **more}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_config_may_not_say_is_named_with_what_it_may(
    case: str, pair: Callable[..., Any], tmp_path: Path
) -> None:
    name, change, said = REFUSED[case]
    config = HUGGINGFACE.exported(pair(name)[0].config)
    if "rope_scaling" in change:
        config.pop("rope_parameters")
    (tmp_path / CONFIG).write_text(json.dumps(config | change))
    with pytest.raises(WeightsError, match=said):
        read_config(tmp_path / CONFIG, ARCHITECTURES)


@pytest.mark.parametrize("damage", ["truncated", "shard gone", "tensor gone"])
def test_damaged_weights_are_one_error_before_anything_is_trained(
    damage: str, pair: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair("3, tied", vocab_size=272)[1].save_pretrained(tmp_path, max_shard_size="60KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    if damage == "truncated":
        shard.write_bytes(shard.read_bytes()[:-100])
    elif damage == "shard gone":
        shard.unlink()
    else:
        tensors = load_file(shard)
        tensors.popitem()
        save_file(tensors, str(shard))
    words = ["--model", "qwen", "--model.weights", str(tmp_path), "--train.steps", "1", "--output", "none"]
    assert main([*words, "--train.sequence-len", "32"]) == 2
    error = capsys.readouterr().err
    assert shard.name in error or "lacks tensors that its index lists" in error
    assert "Traceback" not in error


@pytest.mark.parametrize("name", ["2.5, tied", "3, untied", "3, experts"])
def test_a_run_starts_from_weights_in_their_own_shape_and_converts_back(
    name: str, pair: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a rate that moves nothing, the folder that comes out has the tensors of the one that went in."""
    ours, theirs = pair(name, vocab_size=272)
    theirs.save_pretrained(tmp_path / "in")
    words = ["--model", "qwen", "--model.weights", str(tmp_path / "in"), "--train.sequence-len", "32"]
    assert main([*words, "--print-config"]) == 0
    assert f"generation: {ours.config.generation}" in capsys.readouterr().out
    small = ["--optimizer.lr", "1e-30", "--train.steps", "1", "--data.eval", "none", "--data.read-rows", "4"]
    assert main([*words, *small, "--output", str(tmp_path / "run")]) == 0
    assert convert([str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("in", "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
