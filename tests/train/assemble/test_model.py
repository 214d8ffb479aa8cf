"""Which parameters a run trains: none that the model keeps, whatever the adapter and the options."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from mt_conformance.tiny_config import TinyConfig
from mt_conformance.tiny_model import TinyModel
from mt_core import Adapter, GroupOptions, LowRankConfig, UsageError, split_decay
from mt_core.nn import Encoder, Projector, TrainModel
from mt_plugin_adapters.variants.bitfit.config import BitFitConfig
from mt_plugin_adapters.variants.bitfit.layer import BitFit
from mt_plugin_adapters.variants.freeze.adapter import Freeze
from mt_plugin_adapters.variants.freeze.config import FreezeConfig
from mt_plugin_standard.adapter import Full
from mt_plugin_standard.lora import Lora
from mt_train.assemble.model import parameter_groups, trained_names
from mt_train.config.sections import TrainConfig
from mt_train.engine.media_inputs import MediaInputs, ProjectedEncoder

KEPT = {"blocks.0.up_proj.bias", "blocks.1.up_proj.bias"}


@pytest.fixture
def model() -> TrainModel:
    with torch.device("meta"):
        model = TinyModel(TinyConfig(vocab_size=32, max_seq_len=8))
    model.kept = ("*.up_proj.bias",)
    return model


def names(model: TrainModel, adapter: Adapter, **options: tuple[str, ...]) -> set[str]:
    return trained_names(TrainConfig(**options), model, adapter)


def test_an_adapter_that_offers_all_trains_all_but_what_is_kept(model: TrainModel) -> None:
    everything = {name for name, _ in model.named_parameters()}
    assert everything - names(model, Full()) == KEPT
    assert names(model, Freeze(FreezeConfig(blocks=2))).isdisjoint(KEPT)


def test_a_pattern_of_others_too_trains_those(model: TrainModel) -> None:
    adapter = Lora(LowRankConfig(rank=2))
    adapter.inject(model)
    found = names(model, adapter, enable=("blocks.1.*bias",))
    assert {name for name in found if "lora" not in name} == {"blocks.1.down_proj.bias"}


def test_a_pattern_of_what_is_kept_alone_is_refused_by_name(model: TrainModel) -> None:
    message = (
        r": 'blocks.0.up_proj.b\*' names blocks.0.up_proj.bias, which TinyModel keeps as it is.*kept: \*.up_proj.bias"
    )
    with pytest.raises(UsageError, match="train.enable" + message):
        names(model, Full(), enable=("blocks.0.up_proj.b*",))
    with pytest.raises(UsageError, match="adapter.also" + message):
        names(model, Freeze(FreezeConfig(blocks=1, also=("blocks.0.up_proj.b*",))))


class Seeing(Encoder):
    """An encoder of one projection."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(4, 4)


class Wider(Projector):
    """A projector of one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 8)


PROJECTOR = {"media.eye.projector.linear.weight", "media.eye.projector.linear.bias"}
ENCODER = {"media.eye.encoder.q_proj.weight", "media.eye.encoder.q_proj.bias"}


@pytest.mark.parametrize(
    ("adapter", "options", "expected"),
    [
        (Full(), {}, PROJECTOR | ENCODER),
        (Full(), {"disable": ("media.*.encoder.*",)}, PROJECTOR),
        (Lora(LowRankConfig(rank=2)), {}, PROJECTOR),
        (Lora(LowRankConfig(rank=2)), {"enable": ("media.*",)}, PROJECTOR | ENCODER),
        (Lora(LowRankConfig(rank=2)), {"enable": ("media.*.projector.*bias",)}, PROJECTOR),
        (Lora(LowRankConfig(rank=2)), {"disable": ("media.*",)}, set()),
        (Freeze(FreezeConfig(blocks=1)), {}, PROJECTOR),
        (BitFit(BitFitConfig()), {}, PROJECTOR),
    ],
)
def test_projectors_are_trained_under_every_adapter_and_encoders_where_they_are_meant(
    model: TrainModel, adapter: Adapter, options: dict[str, tuple[str, ...]], expected: set[str]
) -> None:
    model.media = MediaInputs({"eye": ProjectedEncoder(Seeing(), Wider())})
    adapter.inject(model)
    assert {name for name in names(model, adapter, **options) if name.startswith("media.")} == expected


def test_a_projector_that_an_adapter_stands_in_is_trained_by_it_alone(model: TrainModel) -> None:
    model.media = MediaInputs({"eye": ProjectedEncoder(Seeing(), Wider())})
    adapter = Lora(LowRankConfig(rank=2, targets=("media.*.projector.*",)))
    adapter.inject(model)
    found = names(model, adapter)
    assert found
    assert all("lora" in name and name.startswith("media.eye.projector.") for name in found)


def test_an_adapter_of_nothing_else_is_told(model: TrainModel) -> None:
    model.kept = ("*",)
    with pytest.raises(UsageError, match="all that the adapter would train is kept as it is by TinyModel"):
        names(model, Full())


def rates(model: TrainModel, *off: str) -> dict[str, float]:
    """Trained parameter → its rate."""
    optimizer = SimpleNamespace(name="any", options=GroupOptions(lr=1.0, layer_decay=0.5))
    train = TrainConfig(disable=off)
    parts: Any = SimpleNamespace(
        config=SimpleNamespace(train=train, optimizer=optimizer, adapter=SimpleNamespace(name="full")),
        optimizer_component=SimpleNamespace(split=split_decay),
        objective_component=SimpleNamespace(head="model"),
    )
    of = {id(each): group["lr"] for group in parameter_groups(parts, model, Full()) for each in group["params"]}
    return {name: of[id(each)] for name, each in model.named_parameters() if id(each) in of}


@pytest.mark.parametrize("off", ["blocks.0.*", "blocks.1.*", "blocks.*"])
def test_layers_have_the_rate_of_their_place_in_the_model_whatever_is_frozen(model: TrainModel, off: str) -> None:
    """As timm counts: https://github.com/huggingface/pytorch-image-models, ``param_groups_layer_decay``."""
    whole, part = rates(model), rates(model, off)
    assert set(whole.values()) == {1.0, 0.5, 0.25, 0.125}
    assert len(part) < len(whole)
    assert part == {name: whole[name] for name in part}
