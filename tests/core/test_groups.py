"""Which parameters share a rate and a weight decay."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from mt_core import GroupOptions, MtConfig, UsageError, block_number, split_decay
from mt_core.groups import Rate

SHAPES = {
    "model.embed_tokens.weight": (9, 4),
    "model.layers.0.mlp.up.weight": (4, 4),
    "model.layers.0.mlp.lora_B.weight": (4, 2),
    "model.layers.0.norm.weight": (4,),
    "model.layers.1.mlp.up.weight": (4, 4),
    "model.layers.1.mlp.up.bias": (4,),
    "model.norm.weight": (4,),
    "lm_head.weight": (9, 4),
}


def split(config: MtConfig) -> dict[str, tuple[set[str], float | None, float]]:
    """Group → its names, its rate and its decay."""
    named = [(name, torch.zeros(shape)) for name, shape in SHAPES.items()]
    names = {id(each): name for name, each in named}
    groups = split_decay(named, config)
    placed = [names[id(each)] for group in groups for each in group["params"]]
    assert sorted(placed) == sorted(SHAPES), "each parameter is in one group"
    return {
        group["name"]: ({names[id(each)] for each in group["params"]}, group.get("lr"), group["weight_decay"])
        for group in groups
    }


VECTORS = {name for name, shape in SHAPES.items() if len(shape) == 1}


def test_norms_and_biases_keep_their_weights_without_a_rate_of_their_own() -> None:
    groups = split(GroupOptions(weight_decay=0.1))
    assert groups == {"decay": (set(SHAPES) - VECTORS, None, 0.1), "no_decay": (VECTORS, None, 0.0)}


def test_biases_of_fused_experts_are_vectors_and_their_weights_matrices() -> None:
    named = [("experts.gate_up_proj", torch.zeros(3, 8, 4)), ("experts.gate_up_proj_bias", torch.zeros(3, 8))]
    groups = {group["name"]: group["params"] for group in split_decay(named, GroupOptions(weight_decay=0.1))}
    assert [each.dim() for each in groups["decay"]] == [3]
    assert [each.dim() for each in groups["no_decay"]] == [2]


def test_embeddings_keep_theirs_where_a_pattern_says_so() -> None:
    groups = split(GroupOptions(weight_decay=0.1, no_decay=("*embed*", "lm_head*")))
    assert groups["no_decay"][0] == VECTORS | {"model.embed_tokens.weight", "lm_head.weight"}


def test_a_pattern_scales_a_rate_or_sets_it_and_the_first_one_counts() -> None:
    """LoRA+ (https://arxiv.org/abs/2402.12354) is a scale for B."""
    rates = {"*lora_B*": {"scale": 16.0}, "lm_head*": {"value": 0.5}, "model.layers.0.*": {"scale": 2.0}}
    groups = split(GroupOptions(lr=1e-2, weight_decay=0.1, rates=rates))  # type: ignore[arg-type]
    assert groups["decay *lora_B*"] == ({"model.layers.0.mlp.lora_B.weight"}, 0.16, 0.1)
    assert groups["decay lm_head*"] == ({"lm_head.weight"}, 0.5, 0.1)
    assert groups["decay model.layers.0.*"] == ({"model.layers.0.mlp.up.weight"}, 0.02, 0.1)
    assert groups["no_decay model.layers.0.*"] == ({"model.layers.0.norm.weight"}, 0.02, 0.0)
    assert groups["decay"][0] == {"model.embed_tokens.weight", "model.layers.1.mlp.up.weight"}


def test_each_layer_has_the_rate_of_the_next_times_a_factor() -> None:
    """Table 10 of BEiT (https://arxiv.org/abs/2106.08254): the head has the full rate, the embedding the lowest."""
    rates = {next(iter(names)): rate for names, rate, _ in split(GroupOptions(lr=1.0, layer_decay=0.5)).values()}
    groups = split(GroupOptions(lr=1.0, layer_decay=0.5))
    of = {name: rate for names, rate, _ in groups.values() for name in names}
    assert of["lm_head.weight"] == of["model.norm.weight"] == 1.0
    assert of["model.layers.1.mlp.up.weight"] == of["model.layers.1.mlp.up.bias"] == 0.5
    assert of["model.layers.0.norm.weight"] == 0.25
    assert of["model.embed_tokens.weight"] == 0.125
    assert len(rates) == len(groups)


def test_encoders_of_media_come_before_the_first_block_wherever_their_names_stand() -> None:
    names = ["model.embed_tokens.weight", *(f"model.layers.{number}.weight" for number in range(2)), "lm_head.weight"]
    names += ["media.eye.encoder.layers.1.weight", "media.eye.projector.weight"]
    named = [(name, torch.zeros(2, 2)) for name in names]
    groups = split_decay(named, GroupOptions(lr=1.0, layer_decay=0.5))
    rates = {
        name: group["lr"] for group in groups for name, each in named if any(each is one for one in group["params"])
    }
    assert rates["media.eye.encoder.layers.1.weight"] == rates["media.eye.projector.weight"] == 0.125
    assert rates["model.embed_tokens.weight"] == 0.125
    assert rates["lm_head.weight"] == 1.0


@pytest.mark.parametrize("values", [{"no_decay": ("*embd*",)}, {"rates": {"*embd*": {"scale": 2.0}}}])
def test_a_pattern_that_matches_nothing_is_an_error(values: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"optimizer\.(no_decay|rates): '\*embd\*' matches none of 8 parameters"):
        split(GroupOptions(**values))


def test_a_rate_whose_pattern_never_counts_is_an_error() -> None:
    rates = {"*": Rate(scale=2.0), "*embed*": Rate(scale=3.0)}
    with pytest.raises(UsageError, match=r"'\*embed\*' never counts: all that it fits also fits '\*', .* Put it first"):
        split(GroupOptions(rates=rates))
    split(GroupOptions(rates=dict(reversed(rates.items()))))


@pytest.mark.parametrize("rate", [{}, {"scale": 2.0, "value": 0.1}, {"scale": 0.0}, {"value": 2.0}, {"factor": 1.0}])
def test_a_rate_is_either_a_scale_or_a_value(rate: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        GroupOptions(rates={"*": rate})  # type: ignore[dict-item]


def test_a_config_of_a_strangers_optimizer_needs_none_of_these_options() -> None:
    class Own(MtConfig):
        weight_decay: float = 0.2

    assert {name: decay for name, (_, _, decay) in split(Own()).items()} == {"decay": 0.2, "no_decay": 0.0}
    assert {decay for _, _, decay in split(MtConfig()).values()} == {0.0}


def test_the_number_of_a_block_is_in_the_name() -> None:
    assert [block_number(name) for name in ("model.layers.12.a.3.weight", "model.norm.weight", "h.3.w")] == [
        12,
        None,
        3,
    ]
    assert block_number("media.eye.encoder.layers.3.q_proj.weight") is None
