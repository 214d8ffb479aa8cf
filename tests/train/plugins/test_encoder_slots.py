"""Weights of encoders: a folder, one of the Hub by its name, and what is neither."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import SiglipVisionConfig, SiglipVisionModel

from mt_core import ConfigError
from mt_core.plugins.host import PluginHost
from mt_train.assemble.parts import Parts
from mt_train.plugins import hub
from mt_train.plugins.resolve import resolve


def parts_of(weights: str) -> Parts:
    encoders = {"siglip": {"weights": weights}}
    raw = {"model": {"name": "llama", "n_layers": 1}, "train": {"sequence_len": 32}, "encoders": encoders}
    return Parts.of(resolve(raw, PluginHost.discover()))


def test_a_name_of_the_hub_is_located_and_stays_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 20, "patch_size": 4}
    SiglipVisionModel(SiglipVisionConfig(**shape, intermediate_size=48)).save_pretrained(tmp_path)
    monkeypatch.setattr(hub, "_snapshot", {"org/tower@v2": tmp_path}.__getitem__)
    parts = parts_of("org/tower@v2")
    (encoder,) = parts.encoders
    assert encoder.path == tmp_path
    assert encoder.options.weights == str(tmp_path), "what reads images looks into the folder"
    assert parts.config.extensions["encoders"][0].options.weights == "org/tower@v2", (
        "another machine has it somewhere else"
    )
    assert (encoder.component.width(encoder.options), "encoder.post_layernorm.weight" in encoder.tensors()) == (
        32,
        True,
    )


def test_a_folder_that_is_not_there_is_told_apart_from_one_that_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"encoders\.siglip\.weights: .*nowhere does not exist; give a folder"):
        parts_of(str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="is no folder that siglip reads"):
        parts_of(str(tmp_path))
