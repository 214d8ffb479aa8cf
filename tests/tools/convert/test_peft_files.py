"""Files of peft 0.21 in all the ways that its configs name layers, ranks and factors: read with its logits, or refused by the key.

Logits are compared to 1e-5: both compute in fp32, in another order.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from adapter_folders import IDS, close, ours
from torch import Tensor
from transformers import AutoModelForCausalLM

from mt_core import WeightsError
from mt_core.nn import AdaptedLinear
from mt_train.assemble.adapter_slot import with_adapter
from mt_train.assemble.discovery import discover_plugins
from mt_train.assemble.load import load_model
from mt_train.assemble.parts import Parts
from mt_train.plugins.resolve import resolve

TWO: dict[str, Any] = {"target_modules": ["q_proj", "up_proj"]}
RANDOM = {"init_lora_weights": False, "r": 4, "lora_alpha": 5}
TYPES: dict[str, tuple[type[peft.PeftConfig], dict[str, Any]]] = {
    "lora": (peft.LoraConfig, RANDOM),
    "dora": (peft.LoraConfig, {**RANDOM, "use_dora": True}),
    "adalora": (peft.AdaLoraConfig, {"init_r": 6, "target_r": 2, "lora_alpha": 7, "total_step": 9}),
    "boft": (peft.BOFTConfig, {"init_weights": False}),
    "delora": (peft.DeloraConfig, {"r": 4, "init_weights": False}),
    "hira": (peft.HiraConfig, {"r": 4, "init_weights": False}),
    "hra": (peft.HRAConfig, {"r": 4, "init_weights": False}),
    "ia3": (peft.IA3Config, {"init_ia3_weights": False}),
    "loha": (peft.LoHaConfig, {"r": 4, "alpha": 5, "init_weights": False}),
    "lokr": (peft.LoKrConfig, {"r": 2, "alpha": 5, "decompose_factor": 4, "init_weights": False}),
    "oft": (peft.OFTConfig, {"oft_block_size": 8, "init_weights": False}),
    "randlora": (peft.RandLoraConfig, {"r": 4, "init_weights": False}),
    "vera": (peft.VeraConfig, {"r": 8, "init_weights": False}),
}
PARTLY = {"target_modules": ["q_proj", "nowhere_proj", "model.layers.1.mlp.up_proj"]}
"""The second name is that of no layer, which peft reads over."""
LAYERS = {**TWO, "layers_to_transform": 0}
EXPRESSION = {"target_modules": r".*\.1\..*(q_proj|up_proj)"}
READ: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        f"{name}, {what}": (name, keys)
        for what, keys in {"partly": PARTLY, "layer 0": LAYERS}.items()
        for name in TYPES
        if name not in ("ia3", "dora")
    },
    **{f"{name}, expression": (name, EXPRESSION) for name in ("lora", "dora", "vera", "oft")},
    "all linear": ("lora", {"target_modules": "all-linear"}),
    "pattern of layers": ("lora", {**TWO, "layers_to_transform": [1], "layers_pattern": "layers"}),
    "excluded": ("lora", {**TWO, "exclude_modules": ["model.layers.0.self_attn.q_proj"]}),
    "excluded expression": ("lora", {**TWO, "exclude_modules": r".*\.0\..*"}),
    "ranks that fit nothing": ("lora", {**TWO, "rank_pattern": {"nowhere": 2}, "alpha_pattern": {"nowhere": 2}}),
    "ranks by expressions": (
        "lora",
        {**TWO, "rank_pattern": {r".*\.0\.self_attn\.q_proj": 2, "up_proj": 3}, "use_rslora": True},
    ),
    "alphas by expressions": ("lora", {**TWO, "alpha_pattern": {r"^model\.layers\.(0|2)\..*": 7}}),
    "more ranks than the layer": ("lora", {**TWO, "r": 48}),
    "tiny alpha": ("loha", {**TWO, "alpha": 3e-7}),
    "loha with patterns": (
        "loha",
        {**TWO, "rank_pattern": {"up_proj": 2}, "alpha_pattern": {"q_proj": 3, "nowhere": 1}},
    ),
    "lokr with patterns": ("lokr", {**TWO, "rank_pattern": {"up_proj": 1}, "alpha_pattern": {"q_proj": 3}}),
    "hira with ranks, which peft 0.21 reads over": ("hira", {**TWO, "rank_pattern": {"up_proj": 2, "nowhere": 1}}),
    "delora with ranks": ("delora", {**TWO, "rank_pattern": {"up_proj": 2}, "lambda_pattern": {"q_proj": 3}}),
    "ia3, expressions": ("ia3", {**EXPRESSION, "feedforward_modules": r".*\.up_proj"}),
    "ia3, partly": ("ia3", {**PARTLY, "feedforward_modules": ["model.layers.1.mlp.up_proj"]}),
    "ia3, no inputs": ("ia3", {**TWO, "feedforward_modules": []}),
    "oft by blocks": ("oft", {**TWO, "r": 4, "oft_block_size": 0}),
    "oft of a size that peft has adjusted": ("oft", {**TWO, "oft_block_size": 12}),
    "oft, exact": ("oft", {**TWO, "use_cayley_neumann": False}),
    "boft by blocks": ("boft", {**TWO, "boft_block_size": 0, "boft_block_num": 4}),
    "vera without its matrices": ("vera", {**TWO, "save_projection": False, "projection_prng_key": 7}),
    "randlora without its matrices": ("randlora", {**TWO, "save_projection": False, "projection_prng_key": 3}),
    "randlora, sparse": ("randlora", {**TWO, "sparse": True}),
    "adalora, pruned": ("adalora", {**TWO, "pruned": [True, False, True, False, False, True]}),
    "adalora, fewer ranks than its target": ("adalora", {**TWO, "target_r": 8}),
}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "head": ("lora", {"target_modules": ["q_proj", "lm_head"]}, r"target_modules is .*lm_head.* not for embeddings and the head"),
    "embedding": ("lora", {"target_modules": ["q_proj", "embed_tokens"]}, "target_modules is .*embed_tokens"),
    "bias": ("lora", {**TWO, "bias": "all"}, "bias is 'all' there and 'none' here"),
    "bias of a pair": ("lora", {**TWO, "lora_bias": True}, "lora_bias is True there, which is not known here"),
    "norm": ("lora", {**TWO, "modules_to_save": ["norm"]}, r"modules_to_save is \['norm'\]: modules that are trained whole"),
    "tokens": ("lora", {**TWO, "trainable_token_indices": [1, 2]}, r"trainable_token_indices is \[1, 2\]: rows of the embedding"),
    "parameters": ("lora", {"target_modules": ["up_proj"], "target_parameters": ["q_proj.weight"]}, "target_parameters is"),
    "blocks": ("lora", {**TWO, "layer_replication": [[0, 2], [0, 2]]}, "layer_replication is"),
    "pissa": ("lora", {**TWO, "init_lora_weights": "pissa"}, "init_lora_weights is 'pissa' there, which changes the base"),
    "no alpha": ("lora", {**TWO, "lora_alpha": 0}, r"lora_alpha: Input should be greater than 0 \(got 0\)"),
    "reflections": ("hra", {**TWO, "apply_GS": True}, "apply_GS is True there"),
    "constrained": ("oft", {**TWO, "coft": True}, "coft is True there"),
    "terms": ("oft", {**TWO, "num_cayley_neumann_terms": 3}, "num_cayley_neumann_terms: Input should be greater"),
    "sparse and not there": ("randlora", {**TWO, "very_sparse": True, "save_projection": False}, "very_sparse is True there"),
}  # fmt: skip
WITHIN = {"tiny alpha": 0.0, "adalora, fewer ranks than its target": 0.0}
"""How far the logits have to be from the base's, at least: 1e-3 but for these."""


@pytest.fixture(scope="module")
def write_adapter(pretrained_folder: Path) -> Callable[[Path, str, dict[str, Any]], tuple[Tensor, Tensor]]:
    """``write_adapter(folder, type, keys)``: an adapter as peft saves it; logits of what peft reads of it, and of the base."""
    base = AutoModelForCausalLM.from_pretrained(pretrained_folder)

    def write(folder: Path, name: str, keys: dict[str, Any]) -> tuple[Tensor, Tensor]:
        kind, options = TYPES[name]
        given = {**options, **keys}
        kept = given.pop("pruned", None)
        torch.manual_seed(1)
        model = peft.get_peft_model(copy.deepcopy(base), kind(**given))
        for parameter in (each for each, value in model.named_parameters() if "lora_E" in each):
            torch.nn.init.normal_(model.get_parameter(parameter))
        if kept is not None:
            model.peft_config["default"].rank_pattern = _prune(model, kept)
        model.save_pretrained(folder)
        with torch.no_grad():
            found = peft.PeftModel.from_pretrained(copy.deepcopy(base), folder).eval()(IDS).logits
            return found, base(IDS).logits

    return write


def _prune(model: peft.PeftModel, kept: list[bool]) -> dict[str, list[bool]]:
    """The ranks that are left of the first layer; all of the others."""
    names = [name.removeprefix("base_model.model.") for name, _ in model.named_parameters() if "lora_E" in name]
    return {names[0]: kept, **{name: [True] * len(kept) for name in names[1:]}}


def _read(base: Path, folder: Path) -> Tensor:
    host = discover_plugins()
    raw = {"model": {"name": "llama", "weights": str(base)}, "train": {"sequence_len": 2}}
    return ours(load_model(Parts.of(resolve(with_adapter(raw, folder, host), host)), None, print))


@pytest.mark.parametrize("case", READ)
def test_what_peft_reads_has_pefts_logits_here(
    case: str, write_adapter: Any, pretrained_folder: Path, tmp_path: Path
) -> None:
    want, plain = write_adapter(tmp_path / "a", *READ[case])
    assert (want - plain).abs().max() >= WITHIN.get(case, 1e-3)
    close(_read(pretrained_folder, tmp_path / "a"), want)


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_place_here_is_refused_by_the_key_of_the_file(
    case: str, write_adapter: Any, pretrained_folder: Path, tmp_path: Path
) -> None:
    name, keys, message = REFUSED[case]
    write_adapter(tmp_path / "a", name, keys)
    with pytest.raises(WeightsError, match=message) as caught:
        _read(pretrained_folder, tmp_path / "a")
    said = str(caught.value)
    assert said.startswith(f"{tmp_path / 'a' / 'adapter_config.json'}: ")
    assert "Merge it in peft (merge_and_unload), and give the merged folder as the weights" in said
    assert "adapter." not in said.replace("merge_and_unload", "").replace(str(tmp_path), ""), (
        "no option of a run: nobody gave one"
    )
    assert "in the run" not in said


def test_an_adapter_of_another_model_names_a_tensor_that_has_no_layer(
    write_adapter: Any, pretrained_folder: Path, tmp_path: Path
) -> None:
    write_adapter(tmp_path / "a", "lora", TWO)
    file = tmp_path / "a/adapter_model.safetensors"
    from safetensors.torch import load_file, save_file

    save_file({name.replace("model.layers", "decoder.h"): each for name, each in load_file(file).items()}, file)
    with pytest.raises(WeightsError, match=r"an adapter of another model: this one has no layer for .*decoder\.h"):
        _read(pretrained_folder, tmp_path / "a")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank_pattern": [1]}, r"rank_pattern is \[1\], and has to be of type dict"),
        ({"target_modules": 3}, "target_modules is 3, and has to be of type list or str"),
        ({"r": "four"}, r"r: Input should be a valid integer \(got 'four'\)"),
        ({"peft_type": "ADALORA", "rank_pattern": {"x.lora_E": [False]}}, "rank_pattern leaves no rank of x"),
        ({"rank_pattern": {"q_proj(": 2}}, r"this cannot be read as an adapter lora: missing \)"),
        ({"lora_alpha": None}, r"lora_alpha.*: Input should be a valid number \(got None\)"),
    ],
)
def test_a_config_with_values_of_another_type_is_one_message(
    change: dict[str, Any], message: str, write_adapter: Any, pretrained_folder: Path, tmp_path: Path
) -> None:
    write_adapter(tmp_path / "a", "lora", TWO)
    config = json.loads((tmp_path / "a/adapter_config.json").read_text())
    (tmp_path / "a/adapter_config.json").write_text(json.dumps(config | change))
    with pytest.raises(WeightsError, match=message):
        _read(pretrained_folder, tmp_path / "a")


def test_the_ranks_that_are_left_have_the_scale_of_the_first_rank(
    write_adapter: Any, pretrained_folder: Path, tmp_path: Path
) -> None:
    write_adapter(tmp_path / "a", *READ["adalora, pruned"])
    host = discover_plugins()
    raw = {"model": {"name": "llama", "weights": str(pretrained_folder)}, "train": {"sequence_len": 2}}
    model = load_model(Parts.of(resolve(with_adapter(raw, tmp_path / "a", host), host)), None, print)
    layers = [each for each in model.modules() if isinstance(each, AdaptedLinear)]
    assert {len(each.lora_E) for each in layers} == {3, 6}  # type: ignore[arg-type]
    assert {round(each.scale, 12) for each in layers} == {round(7 / 6, 12)}  # type: ignore[arg-type]
