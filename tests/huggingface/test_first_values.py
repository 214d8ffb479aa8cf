"""Models without a folder of weights begin as transformers begins them, whatever stands in the place of their layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.huggingface import tiny_models
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from mt_core.plugins.host import PluginHost
from mt_plugin_huggingface.config import HuggingFaceConfig
from mt_plugin_huggingface.model import HuggingFaceModel
from mt_train.assemble.injection import inject
from mt_train.assemble.parts import Parts
from mt_train.engine.build import build_quantized, stored_layers, value_of
from mt_train.plugins.resolve import resolve

WITHIN = ("falcon_mamba", "gpt2", "mamba2", "nanochat")
"""Types in which a module has a rule for parameters of those in it."""


def drawn(model: HuggingFaceModel) -> dict[str, Tensor]:
    return {name: value_of(model, name, each.shape, {}, 1) for name, each in model.named_parameters()}


@pytest.mark.parametrize("kind", WITHIN)
def test_first_values_are_spread_as_those_of_transformers(kind: str) -> None:
    content = tiny_models.content(kind)
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind]
    theirs = AutoModelForCausalLM.from_config(config.from_dict(config._decode_special_floats(content)))
    ours = drawn(HuggingFaceModel(HuggingFaceConfig(config=content)))
    for name, expected in theirs.named_parameters():
        found, wanted = ours[name], expected.detach()
        if wanted.numel() > 1 and wanted.std() > 0:
            few = 5 / wanted.numel() ** 0.5
            assert float(found.std()) == pytest.approx(float(wanted.std()), rel=few), name
            assert float(found.mean()) == pytest.approx(float(wanted.mean()), rel=few, abs=few * float(wanted.std())), (
                name
            )
        else:
            assert torch.equal(found, wanted), name


def test_a_first_value_is_drawn_without_touching_another() -> None:
    model = HuggingFaceModel(HuggingFaceConfig(config=tiny_models.content("mamba2")))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(3.0)
    drawn(model)
    assert all((parameter == 3.0).all() for parameter in model.parameters())


@pytest.mark.parametrize("kind", ["falcon_mamba", "gpt2", "llama"])
def test_layers_in_fewer_bits_and_under_adapters_begin_as_dense_ones(kind: str) -> None:
    slot: dict[str, Any] = {"name": "huggingface", "config": tiny_models.content(kind)}
    raw = {"model": slot, "quantizer": "nf4", "adapter": {"name": "lora", "rank": 2}, "train": {"sequence_len": 48}}
    parts = Parts.of(resolve(raw, PluginHost.discover()))
    model = build_quantized(parts.model, parts.quantizer(), torch.device("cpu"))
    stored = dict(stored_layers(model))
    inject(parts, model)
    dense = drawn(HuggingFaceModel(HuggingFaceConfig(**{key: each for key, each in slot.items() if key != "name"})))
    assert stored
    for name in stored:
        weight = dense[f"{name}.weight"]
        assert torch.equal(value_of(model, f"{name}.weight", weight.shape, {}, 1), weight), name
