"""Weights come and go in Hugging Face's format, MXFP4 included; what the family does not do is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.families.parity import assert_left_out_keys_are_those_of_transformers
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from mt_core.errors import WeightsError
from mt_core.weights import CONFIG, read_config, write_config
from mt_plugin_gpt_oss.config import GptOssConfig
from mt_plugin_gpt_oss.huggingface import GPT_OSS, HUGGINGFACE
from mt_plugin_gpt_oss.mxfp4 import dequantise
from mt_plugin_gpt_oss.variants import VARIANTS
from mt_tools.cli.convert import main as convert
from mt_tools.cli.export import main as export
from mt_train.cli.train import main

PUBLISHED: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "eos_token_id": 200002,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "output_router_logits": False,
    "pad_token_id": 199999,
    "quantization_config": {
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
        "quant_method": "mxfp4",
    },
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "router_aux_loss_coef": 0.9,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "use_cache": True,
    "vocab_size": 201088,
}
"""``config.json`` of https://huggingface.co/openai/gpt-oss-20b."""


def test_the_published_config_is_the_size_of_its_name(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(json.dumps(PUBLISHED))
    assert GptOssConfig(**read_config(tmp_path / CONFIG, [GPT_OSS])) == GptOssConfig(**VARIANTS["20b"])


@pytest.mark.parametrize("size", VARIANTS)
def test_every_size_is_described_so_that_it_and_transformers_read_the_same(size: str, tmp_path: Path) -> None:
    config = GptOssConfig(**VARIANTS[size])
    (tmp_path / CONFIG).write_text(json.dumps(write_config(config, [GPT_OSS])))
    assert GptOssConfig(**read_config(tmp_path / CONFIG, [GPT_OSS])) == config
    theirs = AutoConfig.from_pretrained(tmp_path)
    assert (theirs.num_local_experts, theirs.num_experts_per_tok) == (config.n_experts, config.top_k)
    assert theirs.rope_parameters["rope_type"] == ("default" if size == "tiny" else "yarn")
    windows = [None if kind == "full_attention" else theirs.sliding_window for kind in theirs.layer_types]
    assert windows == [config.window_of(index) for index in range(config.n_layers)]


def test_a_key_that_a_file_leaves_out_is_what_transformers_takes(tmp_path: Path) -> None:
    content = write_config(GptOssConfig(**VARIANTS["20b"]), [GPT_OSS])
    assert_left_out_keys_are_those_of_transformers(content, [GPT_OSS], GptOssConfig, tmp_path)


def test_a_file_without_rotary_parameters_has_those_of_the_published_ones(tmp_path: Path) -> None:
    less = {key: value for key, value in PUBLISHED.items() if key not in ("rope_scaling", "rope_theta")}
    (tmp_path / CONFIG).write_text(json.dumps(less))
    assert GptOssConfig(**read_config(tmp_path / CONFIG, [GPT_OSS])) == GptOssConfig(**VARIANTS["20b"])


# --------------------------------------------------------------------------------------------------------------- MXFP4


def random_parts(experts: int, outputs: int, inputs: int, scales: tuple[int, int] = (0, 256)) -> tuple[Tensor, Tensor]:
    """Blocks of any bytes, and scales within bounds, from one seed."""
    generator = torch.Generator().manual_seed(5)
    blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8, generator=generator)
    return blocks, torch.randint(*scales, blocks.shape[:3], dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("scales", [(0, 256), (110, 131)], ids=["any scale", "usual scales"])
def test_mxfp4_is_what_transformers_makes_of_it_bit_for_bit(scales: tuple[int, int]) -> None:
    """All bytes and all scales, those included that are beyond bf16."""
    blocks, exponents = random_parts(3, 48, 128, scales)
    blocks[0, :16, 0] = torch.arange(256, dtype=torch.uint8).view(16, 16)
    ours, theirs = dequantise(blocks, exponents), convert_moe_packed_tensors(blocks, exponents)
    assert ours.shape == (3, 128, 48)
    assert torch.equal(ours.view(torch.int16), theirs.view(torch.int16))  # a sign of zero counts


@pytest.fixture
def quantised(pair: Callable[..., Any], tmp_path: Path) -> Path:
    """A folder as the published ones are: bf16, the experts in MXFP4."""
    folder = tmp_path / "quantised"
    _, theirs = pair("YaRN", vocab_size=272)
    theirs.to(torch.bfloat16).save_pretrained(folder)
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | {"quantization_config": PUBLISHED["quantization_config"]}))
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = random_parts(experts, outputs, inputs, (116, 124))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_quantised_folder_comes_out_in_plain_bf16(quantised: Path, tmp_path: Path) -> None:
    """Under the published names; transformers opens it, and computes what it does with its own dequantised tensors."""
    assert convert([str(quantised), str(tmp_path / "out")]) == 0
    parts, plain = load_file(quantised / "model.safetensors"), load_file(tmp_path / "out/model.safetensors")
    stems = {name.removesuffix("_blocks").removesuffix("_scales") for name in parts}
    assert plain.keys() == stems
    for name in stems - parts.keys():
        theirs = convert_moe_packed_tensors(parts[f"{name}_blocks"], parts[f"{name}_scales"])
        assert torch.equal(plain[name], theirs), name
    assert all(torch.equal(plain[name], parts[name]) for name in stems & parts.keys())
    ids = torch.arange(20)[None]
    config = AutoConfig.from_pretrained(quantised)
    del config.quantization_config
    first = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    first.load_state_dict(plain)
    second = AutoModelForCausalLM.from_pretrained(tmp_path / "out", attn_implementation="eager", dtype=torch.float32)
    assert torch.equal(first.float()(ids).logits, second(ids).logits)


SHORT = ["--train.steps", "1", "--train.sequence-len", "32", "--data.eval", "none", "--data.read-rows", "4"]
LORA = ["--adapter", "lora", "--adapter.rank", "2", "--optimizer.lr", "0.1"]


def test_lora_over_a_quantised_folder_reaches_every_expert_and_merges(
    quantised: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What comes out has the published, fused tensors again; projections have moved, and no bias, norm, router or sink."""
    run = str(tmp_path / "run")
    assert main(["--model.weights", str(quantised), *LORA, *SHORT, "--output", run]) == 0
    config = GptOssConfig(**HUGGINGFACE.values(quantised))
    before = {name: load() for name, load in HUGGINGFACE.tensors(quantised, config).items()}
    projections = [name for name in before if name.endswith("_proj.weight")]
    of_experts = config.n_layers * config.n_experts * 3 * (config.dim + config.ffn_dim)
    trained = 2 * (of_experts + sum(sum(before[name].shape) for name in projections))  # the rank
    assert f"parameters {trained:,} float32, trained" in capsys.readouterr().out
    assert export(["--run", run, "--merge", "--output", str(tmp_path / "out"), "--dtype", "bf16"]) == 0
    after = load_file(tmp_path / "out/model.safetensors")
    assert after.keys() == before.keys()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {*projections, *(name for name in before if name.endswith("_proj"))}


def test_nf4_takes_every_projection_of_every_expert(
    quantised: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model.weights", str(quantised), *LORA, "--quantizer", "nf4", *SHORT]
    assert main([*words, "--output", str(tmp_path / "run")]) == 0
    tensors = HUGGINGFACE.tensors(quantised, GptOssConfig(**HUGGINGFACE.values(quantised)))
    linear = [name for name in tensors if name.endswith(("_proj", "_proj.weight"))]
    assert f"parameters {sum(tensors[name]().numel() for name in linear):,} quantized" in capsys.readouterr().out


@pytest.mark.parametrize("damage", ["no scales", "another shape"])
def test_damaged_mxfp4_is_one_error(damage: str, quantised: Path) -> None:
    tensors = load_file(quantised / "model.safetensors")
    name = "model.layers.1.mlp.experts.down_proj"
    scales = tensors.pop(f"{name}_scales")
    if damage == "another shape":
        tensors[f"{name}_scales"] = scales[:, :-1].clone()
    save_file(tensors, quantised / "model.safetensors")
    config = GptOssConfig(**HUGGINGFACE.values(quantised))
    said = "_scales of .*layers.1.mlp.experts.down_proj" if damage == "no scales" else r"MXFP4 has \(experts,"
    with pytest.raises(WeightsError, match=said):
        HUGGINGFACE.tensors(quantised, config)[name]()


# ----------------------------------------------------------------------------------------------------------- bad input

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another model": ({"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM.* reads GptOssForCausalLM"),
    "no architecture": ({"architectures": None, "model_type": None}, "describes no architecture"),
    "no biases": ({"attention_bias": False}, r"attention_bias=False \(supported: True\)"),
    "a balance loss": ({"output_router_logits": True}, "output_router_logits=True"),
    "dropout": ({"attention_dropout": 0.1}, "attention_dropout=0.1"),
    "other bits": ({"quantization_config": {"quant_method": "fp8"}}, "quantised by 'fp8'; .* 'mxfp4' or none"),
    "irregular blocks": ({"layer_types": ["full_attention", "sliding_attention"] * 12}, "layer_types="),
    "dynamic scaling": ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic'; this family"),
    "a word for a number": ({"num_hidden_layers": "many"}, "wrong type|layer_types"),
    "no experts": ({"num_local_experts": None}, "lacks num_local_experts"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_config_may_not_say_is_named_with_what_it_may(case: str, tmp_path: Path) -> None:
    change, said = REFUSED[case]
    (tmp_path / CONFIG).write_text(json.dumps(PUBLISHED | change))
    with pytest.raises(WeightsError, match=said):
        read_config(tmp_path / CONFIG, [GPT_OSS])
