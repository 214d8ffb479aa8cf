"""Weights come and go in Hugging Face's format, fp8 included; what the family does not do is refused by name."""

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
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from mt_core.errors import WeightsError
from mt_core.weights import CONFIG, read_config, write_config
from mt_plugin_deepseek.config import DeepseekConfig
from mt_plugin_deepseek.fp8 import dequantise
from mt_plugin_deepseek.huggingface import HUGGINGFACE, SECOND, THIRD
from mt_plugin_deepseek.variants import VARIANTS
from mt_tools.cli.convert import main as convert
from mt_tools.cli.export import main as export
from mt_train.cli.train import main

KNOWN = [SECOND, THIRD]
PUBLISHED: dict[str, dict[str, Any]] = {
    "v2-lite": {
        "architectures": ["DeepseekV2ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "aux_loss_alpha": 0.001,
        "first_k_dense_replace": 1,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "kv_lora_rank": 512,
        "max_position_embeddings": 163840,
        "model_type": "deepseek_v2",
        "moe_intermediate_size": 1408,
        "moe_layer_freq": 1,
        "n_group": 1,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "norm_topk_prob": False,
        "num_attention_heads": 16,
        "num_experts_per_tok": 6,
        "num_hidden_layers": 27,
        "num_key_value_heads": 16,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 40,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 4096,
            "type": "yarn",
        },
        "rope_theta": 10000,
        "routed_scaling_factor": 1.0,
        "scoring_func": "softmax",
        "seq_aux": True,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "greedy",
        "v_head_dim": 128,
        "vocab_size": 102400,
    },
    "v3": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "ep_size": 1,
        "first_k_dense_replace": 3,
        "hidden_act": "silu",
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "kv_lora_rank": 512,
        "max_position_embeddings": 163840,
        "model_type": "deepseek_v3",
        "moe_intermediate_size": 2048,
        "moe_layer_freq": 1,
        "n_group": 8,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 61,
        "num_key_value_heads": 128,
        "num_nextn_predict_layers": 1,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "quantization_config": {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
        },
        "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 40,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096,
            "type": "yarn",
        },
        "rope_theta": 10000,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "tie_word_embeddings": False,
        "topk_group": 4,
        "topk_method": "noaux_tc",
        "v_head_dim": 128,
        "vocab_size": 129280,
    },
}
"""``config.json`` of https://huggingface.co/deepseek-ai/DeepSeek-V2-Lite and https://huggingface.co/deepseek-ai/DeepSeek-V3."""


@pytest.mark.parametrize("size", PUBLISHED)
def test_a_published_config_is_the_size_of_its_name(size: str, tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(json.dumps(PUBLISHED[size]))
    assert DeepseekConfig(**read_config(tmp_path / CONFIG, KNOWN)) == DeepseekConfig(**VARIANTS[size])


@pytest.mark.parametrize("size", VARIANTS)
def test_every_size_is_described_so_that_it_and_transformers_read_the_same(size: str, tmp_path: Path) -> None:
    config = DeepseekConfig(**VARIANTS[size])
    (tmp_path / CONFIG).write_text(json.dumps(write_config(config, KNOWN)))
    assert DeepseekConfig(**read_config(tmp_path / CONFIG, KNOWN)) == config
    theirs = AutoConfig.from_pretrained(tmp_path)
    assert theirs.model_type == f"deepseek_v{config.generation}"
    assert (theirs.q_lora_rank, theirs.kv_lora_rank) == (config.q_rank, config.kv_rank)
    assert (theirs.n_group, theirs.topk_group) == (config.n_groups, config.top_groups)


@pytest.mark.parametrize("size", PUBLISHED)
def test_a_key_that_a_file_leaves_out_is_what_transformers_takes(size: str, tmp_path: Path) -> None:
    content = write_config(DeepseekConfig(**VARIANTS[size]), KNOWN)
    assert_left_out_keys_are_those_of_transformers(content, KNOWN, DeepseekConfig, tmp_path)


@pytest.mark.parametrize("said", [True, False, None])
def test_weights_add_up_where_they_do_in_transformers(said: bool | None, tmp_path: Path) -> None:
    """Null there is false, and a key that is left out true."""
    (tmp_path / CONFIG).write_text(json.dumps({**PUBLISHED["v3"], "norm_topk_prob": said}))
    theirs = AutoConfig.from_pretrained(tmp_path)
    assert read_config(tmp_path / CONFIG, KNOWN)["normalise"] is bool(theirs.norm_topk_prob)


# ------------------------------------------------------------------------------------------------- reading and writing


def make_folder(pair: Callable[..., Any], folder: Path, name: str = "V3") -> dict[str, Tensor]:
    """A folder as transformers saves it, in bf16, with a layer that predicts one token more."""
    _, theirs = pair(name, vocab_size=272)
    theirs.to(torch.bfloat16).save_pretrained(folder)
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    tensors = load_file(folder / "model.safetensors")
    extra = {name.replace("layers.2.", "layers.3."): x.clone() for name, x in tensors.items() if "layers.2." in name}
    save_file(tensors | extra, folder / "model.safetensors", metadata={"format": "pt"})
    return tensors


@pytest.mark.parametrize("name", ["V2", "V3"])
def test_a_folder_comes_back_under_the_published_names_without_its_predictors(
    name: str, pair: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bit for bit; transformers opens what comes out with the logits of what went in."""
    before = make_folder(pair, tmp_path / "in", name)
    assert convert([str(tmp_path / "in"), str(tmp_path / "out")]) == 0
    assert "predict further tokens and are left out" in capsys.readouterr().err
    after = load_file(tmp_path / "out/model.safetensors")
    assert "model.layers.1.mlp.experts.7.down_proj.weight" in after
    assert after.keys() == before.keys()
    assert all(torch.equal(after[key], before[key]) for key in before)
    ids = torch.arange(20)[None]
    first, second = (
        AutoModelForCausalLM.from_pretrained(tmp_path / folder, dtype=torch.float32, attn_implementation="eager")
        for folder in ("in", "out")
    )
    assert torch.equal(first(ids).logits, second(ids).logits)


SHORT = ["--train.steps", "1", "--train.sequence-len", "32", "--data.eval", "none", "--data.read-rows", "4"]


def test_a_run_trains_all_but_the_bias_for_the_choice(pair: Callable[..., Any], tmp_path: Path) -> None:
    before = make_folder(pair, tmp_path / "in")
    run = str(tmp_path / "run")
    assert main(["--model.weights", str(tmp_path / "in"), *SHORT, "--output", run]) == 0
    assert convert([run, str(tmp_path / "out")]) == 0
    after = load_file(tmp_path / "out/model.safetensors")
    assert after.keys() == before.keys()
    same = {name for name in before if torch.equal(after[name].float(), before[name].float())}
    assert same == {name for name in before if name.endswith("e_score_correction_bias")}


def test_lora_reaches_every_expert_and_merges_under_the_published_names(
    pair: Callable[..., Any], tmp_path: Path
) -> None:
    before = make_folder(pair, tmp_path / "in")
    run, lora = str(tmp_path / "run"), ["--adapter", "lora", "--adapter.rank", "2", "--optimizer.lr", "0.1"]
    assert main(["--model.weights", str(tmp_path / "in"), *lora, *SHORT, "--output", run]) == 0
    assert export(["--run", run, "--merge", "--output", str(tmp_path / "out")]) == 0
    after = load_file(tmp_path / "out/model.safetensors")
    assert after.keys() == before.keys()
    moved = {name for name in before if not torch.equal(after[name].float(), before[name].float())}
    assert moved == {name for name in before if name.endswith(("_proj.weight", "_proj_with_mqa.weight"))}


def test_the_bias_for_the_choice_moves_against_the_load_where_it_is_asked_for(tmp_path: Path) -> None:
    """One step from 0: up or down by the rate, and not all one way. Layouts: tests/families."""
    run = str(tmp_path / "run")
    assert main(["--model", "deepseek", "--model.balance-rate", "0.25", *SHORT, "--output", run]) == 0
    assert convert([run, str(tmp_path / "out")]) == 0
    after = load_file(tmp_path / "out/model.safetensors")
    biases = torch.stack([after[name] for name in after if name.endswith("e_score_correction_bias")])
    assert biases.shape == (3, 8)
    assert set(biases.unique().tolist()) - {0.0} == {-0.25, 0.25}


# ----------------------------------------------------------------------------------------------------------------- fp8


def random_parts(outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
    """A weight in fp8 and a factor for each of its blocks."""
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(outputs, inputs, generator=generator).mul_(30).to(torch.float8_e4m3fn)
    return weight, torch.rand(-(-outputs // 128), -(-inputs // 128), generator=generator) * 1e-3


def test_fp8_is_what_transformers_makes_of_it_bit_for_bit() -> None:
    weight, scales = random_parts(256, 384)
    theirs = Fp8Dequantize(None)._dequantize_one(weight, scales, torch.bfloat16)
    assert torch.equal(dequantise(weight, scales), theirs)


def test_blocks_at_the_edge_may_be_cut_short() -> None:
    """As V3's ``kv_a_proj_with_mqa``, which has 576 rows: a number and its own block's factor, one by one."""
    weight, scales = random_parts(200, 150)
    ours = dequantise(weight, scales)
    for row, column in [(0, 0), (127, 128), (128, 127), (199, 149)]:
        number = weight[row, column].float() * scales[row // 128, column // 128]
        assert ours[row, column] == number.to(torch.bfloat16)


def test_an_fp8_folder_is_read_in_bf16_and_one_with_other_factors_is_refused(
    pair: Callable[..., Any], tmp_path: Path
) -> None:
    tensors = make_folder(pair, tmp_path)
    config = json.loads((tmp_path / CONFIG).read_text())
    fp8 = PUBLISHED["v3"]["quantization_config"]
    (tmp_path / CONFIG).write_text(json.dumps(config | {"quantization_config": fp8, "num_nextn_predict_layers": 0}))
    name = "model.layers.1.mlp.experts.3.up_proj.weight"
    tensors[name], tensors[f"{name}_scale_inv"] = random_parts(*tensors[name].shape)
    save_file(tensors, tmp_path / "model.safetensors")
    shape = DeepseekConfig(**HUGGINGFACE.values(tmp_path))
    loaders = HUGGINGFACE.tensors(tmp_path, shape)
    assert loaders.keys() == {key for key in tensors if not key.endswith("_scale_inv")}
    assert torch.equal(loaders[name](), dequantise(tensors[name], tensors[f"{name}_scale_inv"]))
    tensors[f"{name}_scale_inv"] = torch.ones(3, 1)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"factors of \(3, 1\); fp8 has one for each 128 × 128, \(1, 1\)"):
        HUGGINGFACE.tensors(tmp_path, shape)[name]()
    del tensors[name]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"up_proj\.weight_scale_inv without the weights"):
        HUGGINGFACE.tensors(tmp_path, shape)


# ----------------------------------------------------------------------------------------------------------- bad input

REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "another model": ("v3", {"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM.* reads DeepseekV2ForCausalLM"),
    "V3.2": ("v3", {"architectures": ["DeepseekV32ForCausalLM"]}, "DeepseekV32ForCausalLM"),
    "biases": ("v3", {"attention_bias": True}, r"attention_bias=True \(supported: False\)"),
    "fewer heads of keys": ("v3", {"num_key_value_heads": 8}, r"num_key_value_heads=8 \(supported: 128\)"),
    "V3's gate in V2": ("v2-lite", {"scoring_func": "sigmoid"}, r"scoring_func='sigmoid' \(supported: 'softmax'\)"),
    "weights that add up in V2": ("v2-lite", {"norm_topk_prob": True}, "norm_topk_prob=True"),
    "every second block": ("v2-lite", {"moe_layer_freq": 2}, "moe_layer_freq=2"),
    "rotary in halves": ("v3", {"rope_interleave": False}, "rope_interleave=False"),
    "other bits": ("v3", {"quantization_config": {"quant_method": "awq"}}, "quantised by 'awq'"),
    "other blocks": (
        "v3",
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}},
        r"blocks of \[64, 64\]",
    ),
    "a word for a number": ("v3", {"rope_scaling": "yarn"}, "wrong type"),
    "no experts": ("v3", {"n_routed_experts": None}, "lacks n_routed_experts"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_config_may_not_say_is_named_with_what_it_may(case: str, tmp_path: Path) -> None:
    size, change, said = REFUSED[case]
    (tmp_path / CONFIG).write_text(json.dumps(PUBLISHED[size] | change))
    with pytest.raises(WeightsError, match=said):
        read_config(tmp_path / CONFIG, KNOWN)
