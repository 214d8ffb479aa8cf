"""Layers of a model that are not where it says are refused with what is wrong, before any check runs into them."""

from __future__ import annotations

import pytest

from mt_conformance.family import check_layers
from mt_conformance.tiny_config import TinyConfig
from mt_conformance.tiny_model import TinyModel
from mt_core.nn import Layer


@pytest.fixture
def model() -> TinyModel:
    return TinyModel(TinyConfig(vocab_size=16, max_seq_len=8))


def test_layers_of_a_model_are_its_modules_and_all_of_them(model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    check_layers(model)
    layers = model.layers()
    monkeypatch.setattr(model, "layers", lambda: [Layer("layers.0", each.module) for each in layers])
    with pytest.raises(
        AssertionError, match=r"gives 'layers\.0', and the model has nothing there; a prefix is the path"
    ):
        check_layers(model)
    monkeypatch.setattr(model, "layers", lambda: [each for each in layers if each.prefix != "norm"])
    with pytest.raises(AssertionError, match=r"norm\.weight is in no layer of layers\(\)"):
        check_layers(model)


def test_projections_for_adapters_are_modules(model: TinyModel) -> None:
    model.default_targets = ("q_proj",)
    with pytest.raises(AssertionError, match=r"default_targets names 'q_proj', and no module ends so.* qkv_proj"):
        check_layers(model)
