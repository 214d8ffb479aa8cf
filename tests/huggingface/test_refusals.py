"""What is not trained is refused by name, with its reason, before torch is loaded where its files say it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.huggingface import tiny_models
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from mt_core.errors import ConfigError, WeightsError
from mt_core.plugins.host import PluginHost
from mt_plugin_huggingface.config import HuggingFaceConfig
from mt_plugin_huggingface.model import HuggingFaceModel
from mt_plugin_huggingface.types import known_types, refused_types
from mt_plugin_huggingface.weights import HUGGINGFACE
from mt_train.cli.train import main as train
from mt_train.engine.plan import check_layout
from mt_train.plugins.resolve import resolve

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "mistral"
    tiny_models.model("mistral").save_pretrained(path)
    return path


@pytest.fixture
def folder(mistral: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(mistral, tmp_path / "mistral"))


def config(**changed: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))

    return change


def index(file: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        where = dict.fromkeys(load_file(folder / WEIGHTS), file)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))

    return change


def tensors(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def do(folder: Path) -> None:
        found = load_file(folder / WEIGHTS)
        change(found)
        save_file(found, folder / WEIGHTS)

    return do


def broken(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def cut(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-8])


NORM = "model.norm.weight"
ON_PAPER: dict[str, tuple[Callable[[Path], None], str]] = {
    "code of its own": (
        config(auto_map={"AutoModelForCausalLM": "x.Y"}),
        "it has auto_map: .* never executed; if the weights are of transformers' own mistral, remove auto_map",
    ),
    "code of a type of its own": (
        config(auto_map={"AutoModelForCausalLM": "x.Y"}, model_type="chatglm"),
        "it has auto_map: .* never executed; use a type of transformers",
    ),
    "unknown": (config(model_type="sprout"), "the model type 'sprout' is unknown here"),
    "newer": (
        config(model_type="sprout", transformers_version="7.1.0.dev0"),
        r"A newer transformers wrote it \(7\.1\.0\.dev0\); types are known as of 5\.23",
    ),
    "no type": (config(model_type=None), "no model_type that is a word, but None"),
    "a list of types": (config(model_type=["mistral"]), "no model_type that is a word"),
    "a number for a class": (config(architectures=3), "it describes 3"),
    "sparse": (config(model_type="deepseek_v32"), "'deepseek_v32' is not trained here: its attention is sparse"),
    "state": (config(model_type="rwkv"), "'rwkv' is not trained here: "),
    "another head": (config(architectures=["MistralForTokenClassification"]), "reads MistralForCausalLM"),
    "fewer bits": (config(quantization_config={"quant_method": "gptq"}), "weights in fewer bits are not read"),
    "both directions": (config(is_causal=False), "is_causal is False: attention in both directions"),
    "both directions, by null": (config(is_causal=None), "is_causal is None: attention in both directions"),
    "rotary": (config(rope_parameters={"rope_type": "axial"}), "'axial' is not known for mistral; known are default"),
    "in layers": (
        config(model_type="gemma3_text", architectures=None, rope_scaling={"type": "dynamic", "factor": 2.0}),
        "'dynamic' is not known for gemma3_text",
    ),
    "no layers": (config(num_hidden_layers=0), "num_hidden_layers is 0, and must be a whole number above 0"),
    "half a head": (config(num_attention_heads=1.5), "num_attention_heads is 1.5"),
    "outside": (index("../model.safetensors"), "is outside the folder"),
    "no file": (index("none.safetensors"), "is missing or no regular file"),
    "cut": (cut, "it is cut short or damaged"),
    "broken": (broken, "missing or damaged"),
}


@pytest.mark.parametrize("case", ON_PAPER)
def test_a_folder_that_is_not_read_says_why(folder: Path, case: str) -> None:
    change, says = ON_PAPER[case]
    change(folder)
    with pytest.raises(WeightsError, match=says):
        HUGGINGFACE.values(folder)
    with pytest.raises(ConfigError, match=says):
        resolve({"model": {"name": "huggingface", "weights": str(folder)}}, PluginHost.discover())


@pytest.mark.parametrize("family", [{}, {"name": "huggingface"}])
def test_a_folder_without_a_config_is_one_message(folder: Path, family: dict[str, str]) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"[Gg]ive the folder that has config\.json") as caught:
        resolve({"model": {**family, "weights": str(folder)}}, PluginHost.discover())
    assert len(caught.value.faults) == 1


IN_TENSORS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "missing": (lambda found: found.pop(NORM), f"missing in the weights \\(1\\): {NORM}"),
    "left over": (lambda found: found.update(other=found[NORM].clone()), "left over in the weights \\(1\\)"),
    "another shape": (lambda found: found.update({NORM: found[NORM][:3].clone()}), "another shape"),
    "whole numbers": (
        lambda found: found.update({NORM: found[NORM].to(torch.int8)}),
        f"{NORM} holds int8 in the weights",
    ),
    "twice": (lambda found: found.update({"norm.weight": found[NORM].clone()}), f"two tensors for {NORM}"),
}


@pytest.mark.parametrize("case", IN_TENSORS)
def test_tensors_that_do_not_fit_are_listed(folder: Path, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    import re

    change, says = IN_TENSORS[case]
    tensors(change)(folder)
    words = [
        "--model",
        "huggingface",
        "--model.weights",
        str(folder),
        "--train.steps",
        "1",
        "--train.sequence-len",
        "48",
        "--data.read-rows",
        "4",
    ]
    assert train([*words, "--data.eval", "none", "--output", "none"]) == 1
    assert re.search(says, capsys.readouterr().err)


@pytest.mark.parametrize("changed", [{"hidden_size": "wide"}, {"hidden_act": "none"}])
def test_a_config_of_which_transformers_makes_no_model_is_one_message(folder: Path, changed: dict[str, Any]) -> None:
    config(**changed)(folder)
    found = HuggingFaceConfig(**HUGGINGFACE.values(folder))
    with pytest.raises(WeightsError, match="transformers makes no mistral of this"):
        HUGGINGFACE.tensors(folder, found)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"do_layer_norm_before": False}, "without model.decoder.final_layer_norm of this config"),
        ({"word_embed_proj_dim": 24}, "without model.decoder.final_layer_norm of 24 channels"),
    ],
)
def test_a_model_without_a_layer_that_its_type_has_is_one_message(changed: dict[str, Any], says: str) -> None:
    """OPT of 350M parameters has a projection in the place of its last norm."""
    found = HuggingFaceConfig(config={**tiny_models.content("opt"), **changed})
    with pytest.raises(WeightsError, match=says):
        HuggingFaceModel(found)


@pytest.mark.parametrize("kind", ["jetmoe", "llama4_text", "longcat_flash"])
def test_experts_of_a_types_own_code_are_not_divided(kind: str) -> None:
    raw: dict[str, Any] = {"model": {"name": "huggingface", "config": tiny_models.content(kind)}}
    resolved = resolve({**raw, "train": {"sequence_len": 4}, "parallel": {"expert": 2}}, PluginHost.discover())
    with pytest.raises(ConfigError, match="huggingface cannot do expert: its experts are of its own code"):
        check_layout(resolved.config, world=2, offers=resolved.offers.values())


def test_what_the_family_cannot_do_is_refused_on_paper() -> None:
    with pytest.raises(
        ConfigError, match=r"train\.compile: huggingface does not do this here: .* Set --train\.compile false\."
    ):
        resolve({"model": "huggingface", "train": {"compile": True}}, PluginHost.discover())


@pytest.mark.parametrize("kind", ["bloom", "lfm2"])
def test_a_type_whose_documents_would_see_each_other_is_not_packed_nor_divided(kind: str) -> None:
    raw: dict[str, Any] = {
        "model": {"name": "huggingface", "config": tiny_models.content(kind)},
        "train": {"sequence_len": 48},
    }
    padded = {**raw, "data": {"batching": "padding"}}
    resolve(padded, PluginHost.discover())
    with pytest.raises(ConfigError, match=r"data\.batching: .*documents in a row.* Set --data\.batching padding"):
        resolve({**raw, "data": {"batching": "packing"}}, PluginHost.discover())
    resolved = resolve({**padded, "parallel": {"sequence": 2}}, PluginHost.discover())
    with pytest.raises(ConfigError, match=r"huggingface cannot do sequence: .*documents in a row"):
        check_layout(resolved.config, world=2, offers=resolved.offers.values())


def test_an_infinity_of_old_files_is_read(tmp_path: Path) -> None:
    tiny_models.model("mamba2").save_pretrained(tmp_path)
    config(time_step_limit=[0.0, float("inf")])(tmp_path)
    assert "Infinity]" in (tmp_path / "config.json").read_text()
    raw = {
        "model": {"name": "huggingface", "weights": str(tmp_path)},
        "train": {"sequence_len": 48},
        "data": {"batching": "padding"},
    }
    found = resolve(raw, PluginHost.discover()).config.model.options.config
    assert found["time_step_limit"] == [0.0, {"__float__": "Infinity"}]


def test_every_causal_type_of_transformers_is_trained_or_refused_with_a_reason() -> None:
    looked_at = known_types().keys() | refused_types().keys()
    assert not MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys() - looked_at
    assert not known_types().keys() & refused_types().keys()
    assert all(len(reason) > 10 for reason in refused_types().values())


def test_a_folder_is_read_and_refused_without_torch_and_transformers(folder: Path) -> None:
    code = f"""
import sys
from mt_core.plugins.host import PluginHost
from mt_train.engine.plan import check_layout
from mt_train.plugins.resolve import resolve
raw = {{"model": {{"name": "huggingface", "weights": {str(folder)!r}}}, "train": {{"sequence_len": 48}}}}
assert resolve(raw, PluginHost.discover()).config.model.name == "huggingface"
assert not {{"torch", "transformers"}} & set(sys.modules), "imported"
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
