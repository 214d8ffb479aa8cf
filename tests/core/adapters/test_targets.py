"""Which projections an adapter takes, and what is said of patterns that name none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from mt_conformance.tiny_config import TinyConfig
from mt_conformance.tiny_model import TinyModel
from mt_core import LowRankConfig, TargetConfig, UsageError
from mt_core.adapters import adapted_layers, targets_of
from mt_core.config.faults import faults_of
from mt_core.nn import Encoder, Projector, TrainModel
from mt_plugin_standard.lora import Lora
from mt_train.engine.media_inputs import MediaInputs, ProjectedEncoder

OWN = {"qkv_proj", "o_proj", "up_proj", "down_proj"}


@pytest.fixture
def model() -> TrainModel:
    with torch.device("meta"):
        return TinyModel(TinyConfig(vocab_size=32, max_seq_len=8))


def endings(found: dict[str, object]) -> set[str]:
    return {name.rpartition(".")[2] for name in found}


def test_the_familys_own_list_is_the_default_and_the_head_is_never_taken(model: TrainModel) -> None:
    assert endings(targets_of(model, TargetConfig())) == OWN
    assert endings(targets_of(model, TargetConfig(targets="all-linear"))) == OWN
    assert len(targets_of(model, TargetConfig())) == 8


def test_a_layer_whose_weight_is_kept_is_no_target_and_refused_where_it_is_meant_alone(model: TrainModel) -> None:
    """For quantizers as well: what is kept stays in fp32."""
    model.kept = ("blocks.1.o_proj.weight",)
    for found in (targets_of(model, TargetConfig()), targets_of(model, TargetConfig(targets="all-linear"))):
        assert len(found) == 7
        assert "blocks.1.o_proj" not in found
    assert list(targets_of(model, TargetConfig(targets=("o_proj",)))) == ["blocks.0.o_proj"]
    with pytest.raises(
        UsageError, match=r"quantizer.targets: '\*1.o_proj' names blocks.1.o_proj.weight, which TinyModel keeps"
    ):
        targets_of(model, TargetConfig(targets=("qkv_proj", "*1.o_proj")), slot="quantizer")


class Seeing(Encoder):
    """An encoder with a projection that decoders have as well."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.ModuleDict({"o_proj": nn.Linear(4, 4)})])


def test_projections_of_encoders_are_named_by_patterns_that_begin_as_they_do_alone(model: TrainModel) -> None:
    """For quantizers as well; an encoder's blocks share no number with the model's."""
    model.media = MediaInputs({"eye": ProjectedEncoder(Seeing(), Projector())})
    own = "media.eye.encoder.layers.0.o_proj"
    for targets in (None, "all-linear", ("o_proj",), ("*.o_proj",), ("*",)):
        assert own not in targets_of(model, TargetConfig(targets=targets))
    assert list(targets_of(model, TargetConfig(targets=("media.*",)), slot="quantizer")) == [own]
    both = targets_of(model, TargetConfig(targets=("o_proj", "media.*.o_proj")))
    assert list(both) == ["blocks.0.o_proj", "blocks.1.o_proj", own]
    with pytest.raises(UsageError, match=r"adapter.targets: 'layers.0.o_proj' names none of the 8 linear layers"):
        targets_of(model, TargetConfig(targets=("layers.0.o_proj",)))


def test_names_and_patterns_choose_and_exclude(model: TrainModel) -> None:
    assert endings(targets_of(model, TargetConfig(targets=("o_proj", "blocks.*.up_proj")))) == {"o_proj", "up_proj"}
    assert list(targets_of(model, TargetConfig(targets=("blocks.1.*qkv_proj",)))) == ["blocks.1.qkv_proj"]
    assert endings(targets_of(model, TargetConfig(exclude=("*.up_proj", "*.down_proj")))) == {"qkv_proj", "o_proj"}


def test_a_word_is_one_name_and_words_with_commas_are_several(model: TrainModel) -> None:
    assert endings(targets_of(model, TargetConfig(targets="o_proj"))) == {"o_proj"}  # type: ignore[arg-type]
    assert endings(targets_of(model, TargetConfig(targets="o_proj, up_proj"))) == {"o_proj", "up_proj"}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"targets": ("qkv_porj",)},
            r"adapter.targets: 'qkv_porj' names none of the 8 linear layers. Did you mean 'qkv_proj'\?",
        ),
        (
            {"targets": ("lm_head",)},
            r"adapter.targets: 'lm_head' names none of .* or are trained whole by --train.enable",
        ),
        ({"exclude": ("w1",)}, "adapter.exclude: 'w1' names none"),
        ({"targets": ("qkv_proj",), "exclude": ("*",)}, "leaves none of the 8 projections; exclude fewer"),
        ({"ranks": {"x_proj": 2}}, "adapter.ranks: 'x_proj' names none"),
        ({"targets": ("qkv_proj",), "alphas": {"up_proj": 2.0}}, "adapter.alphas: 'up_proj' names none"),
        ({"rank": 17}, "adapter.rank: 17 is more than blocks.0.qkv_proj has, which is 48 x 16; at most 16"),
    ],
)
def test_what_names_nothing_or_is_too_large_is_one_clear_message(
    model: TrainModel, config: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Lora(LowRankConfig(**config)).inject(model)


def test_a_family_that_names_no_projections_asks_for_them(model: TrainModel) -> None:
    model.default_targets = ()
    with pytest.raises(UsageError, match=r"names no projections of its own.*all-linear, or some of down_proj"):
        targets_of(model, TargetConfig())


def test_ranks_by_pattern_hold_and_every_target_is_replaced(model: TrainModel) -> None:
    adapter = Lora(LowRankConfig(rank=4, ranks={"blocks.*.down_proj": 2}))
    adapter.inject(model)
    ranks = {name: layer.lora_A.shape[0] for name, layer in adapted_layers(model)}
    assert ranks["blocks.1.down_proj"] == 2
    assert ranks["blocks.1.qkv_proj"] == 4
    assert len(ranks) == 8
    assert len(adapter.trainable_parameters(model)) == 16


@pytest.mark.parametrize("options", [{"targets": "o_proj"}, {"targets": ["o_proj"]}, {"targets": ("o_proj",)}])
def test_a_bare_word_is_one_name(model: TrainModel, options: dict[str, Any]) -> None:
    """As ``--adapter.targets o_proj`` gives it."""
    assert endings(targets_of(model, TargetConfig(**options))) == {"o_proj"}
    assert TargetConfig(exclude="mlp.*").exclude == ("mlp.*",)
    assert TargetConfig(targets="all-linear").targets == "all-linear"


def test_what_is_no_list_of_names_is_refused_under_the_name_of_the_option() -> None:
    with pytest.raises(ValidationError) as caught:
        TargetConfig(targets=3)
    faults = faults_of(caught.value, TargetConfig, "adapter")
    assert {each.key for each in faults} == {"adapter.targets"}
    assert any("should be a list such as [a, b], got 3" in each.problem for each in faults)
