"""GPT-2's projections, whose weights are stored transposed, under adapters and quantizers: compared with transformers and peft."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from tests.huggingface import tiny_models
from tests.huggingface.test_commands import SMALL, STEPS, logits_of, logits_of_run
from transformers import AutoModelForCausalLM

from mt_core.adapters import LoraLinear
from mt_core.plugins.host import PluginHost
from mt_plugin_huggingface.config import HuggingFaceConfig
from mt_plugin_huggingface.linear import TransposedLinear
from mt_plugin_huggingface.model import HuggingFaceModel
from mt_tools.cli.export import main as export
from mt_train.assemble.parts import Parts
from mt_train.assemble.policy import merged_tensors
from mt_train.cli.train import main as run
from mt_train.engine.build import build_quantized, stored_layers
from mt_train.plugins.resolve import resolve

IDS = torch.randint(3, 250, (2, 20), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "gpt2"
    tiny_models.model("gpt2").save_pretrained(path)
    return path


def train(folder: Path, path: Path, *words: str, rate: str = "0.01") -> Path:
    given = ["--model.weights", str(folder), *words, *SMALL, *STEPS, "--optimizer.lr", rate, "--output", str(path)]
    assert run(given) == 0
    return path


def test_lora_reaches_them_and_peft_opens_it(folder: Path, tmp_path: Path) -> None:
    path = train(folder, tmp_path / "run", "--adapter", "lora")
    assert export(["--run", str(path), "--form", "peft", "--output", str(tmp_path / "peft")]) == 0
    written = json.loads((tmp_path / "peft/adapter_config.json").read_text())
    assert written["fan_in_fan_out"]
    assert {"c_attn", "c_fc", "c_proj"} == set(written["target_modules"])
    base = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        theirs = PeftModel.from_pretrained(base, str(tmp_path / "peft"))(IDS, use_cache=False).logits
    ours = logits_of_run(path, IDS)
    assert (ours - theirs).norm() / theirs.norm() < 1e-5
    assert (ours - logits_of(folder, IDS)).norm() / ours.norm() > 1e-3, "nothing was trained"
    assert export(["--run", str(path), "--merge", "--output", str(tmp_path / "merged")]) == 0
    assert (logits_of(tmp_path / "merged", IDS) - ours).norm() / ours.norm() < 1e-5


@pytest.mark.parametrize("adapter", [pytest.param("dora", marks=pytest.mark.soak), "loftq"])
def test_other_adapters_reach_them_and_are_merged(folder: Path, adapter: str, tmp_path: Path) -> None:
    path = train(folder, tmp_path / "run", "--adapter", adapter)
    assert export(["--run", str(path), "--merge", "--output", str(tmp_path / "merged")]) == 0
    ours = logits_of_run(path, IDS)
    assert (ours - logits_of(folder, IDS)).norm() / ours.norm() > 1e-3, "nothing was trained"
    assert (logits_of(tmp_path / "merged", IDS) - ours).norm() / ours.norm() < 1e-5


def test_four_bits_reach_them(folder: Path, tmp_path: Path) -> None:
    path = train(folder, tmp_path / "run", "--adapter", "lora", "--quantizer", "nf4", rate="1e-5")
    ours, before = logits_of_run(path, IDS), logits_of(folder, IDS)
    assert (ours - before).norm() / before.norm() < 0.5, "a tenth is lost by four bits, all by another orientation"
    assert export(["--run", str(path), "--merge", "--output", str(tmp_path / "merged")]) == 0


def test_a_quantized_one_has_the_weight_of_the_file(folder: Path) -> None:
    raw = {"model": {"name": "huggingface", "weights": str(folder)}, "train": {"sequence_len": 48}, "quantizer": "int8"}
    parts = Parts.of(resolve({**raw, "adapter": "lora"}, PluginHost.discover()))
    layers = dict(stored_layers(build_quantized(parts.model, parts.quantizer(), torch.device("cpu"))))
    assert len(layers) == 4 * tiny_models.LAYERS
    assert all(layer.is_transposed for layer in layers.values())


def test_merged_weights_of_a_policy_are_stored_as_those_of_the_model() -> None:
    """``c_proj`` of attention is square: its transposed matrix would fit as well."""
    model = HuggingFaceModel(HuggingFaceConfig(config=tiny_models.content("gpt2")))
    for place in ("attn.c_proj", "attn.c_attn"):
        base = model.get_submodule(f"transformer.h.0.{place}")
        torch.nn.init.normal_(base.weight)
        layer = LoraLinear(base, rank=2, scale=2.0)
        layer.initialise(torch.Generator().manual_seed(0))
        merged = dict(merged_tensors(place, layer))
        assert torch.equal(merged[f"{place}.weight"], base.weight), "B is zero"


def test_dense_weights_are_inputs_by_outputs_transposed() -> None:
    model = HuggingFaceModel(HuggingFaceConfig(config=tiny_models.content("gpt2")))
    layer = model.get_submodule("transformer.h.0.mlp.c_fc")
    assert isinstance(layer, TransposedLinear)
    weight_FE = torch.randn(layer.out_features, layer.in_features)
    layer.put_dense_weight(weight_FE)
    assert torch.equal(layer.dense_weight(), weight_FE)
    x = torch.randn(2, 3, layer.in_features)
    assert layer.bias is not None
    torch.testing.assert_close(layer(x), torch.nn.functional.linear(x, weight_FE, layer.bias))
