"""RaSA against the paper's formula."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from paper_formulas import compare_with_formula
from peft_layers import check_start_and_merge, linear, move, place, start
from shared_models import every_trained_parameter_moves, parameters_of
from tiny_model import inject, tiny_model

from mt_core.adapters import adapted_layers
from mt_plugin_adapters.variants.rasa import COMPONENT
from mt_plugin_adapters.variants.rasa.config import RasaConfig
from mt_plugin_adapters.variants.rasa.layer import RasaLinear

SMALL: dict = {"rank": 4}
BLOCKS = tuple(f"model.layers.{i}.self_attn.q_proj" for i in range(3))


def layer() -> RasaLinear:
    """One of three blocks: 4 - 1 private ranks, 3 in the pool."""
    adapter = COMPONENT.build(RasaConfig(**SMALL))
    return start(adapter.layer(linear(), place(BLOCKS[0], (*BLOCKS, "model.layers.0.self_attn.v_proj"))))


def test_output_gradients_and_merged_weight_are_those_of_the_papers_formula() -> None:
    compare_with_formula(
        move(layer()),
        lambda w, p: (
            w
            + torch.cat([p["rasa_B"], p["rasa_B_S"]], 1) @ p["rasa_d"].diag() @ torch.cat([p["rasa_A"], p["rasa_A_S"]])
        ),
    )


def test_it_begins_as_the_base_and_merges_and_unmerges() -> None:
    check_start_and_merge(layer(), linear())


def test_a_layer_begins_with_half_of_alpha_on_its_own_ranks_and_half_on_the_pool() -> None:
    assert layer().rasa_d.tolist() == pytest.approx([8 / 3] * 3 + [8 / 3] * 3)
    assert layer().rasa_d.sum().item() == pytest.approx(16)


def test_the_pool_has_k_ranks_of_every_block_and_all_parameters_train() -> None:
    model, adapter = inject(COMPONENT.build(RasaConfig(rank=4, pooled=2)), tiny_model(n_layers=3))
    found = parameters_of(model)
    assert {name: len(each) for name, each in found.items()} == {
        "rasa_A_S": 7,
        "rasa_B_S": 7,
        "rasa_A": 21,
        "rasa_B": 21,
        "rasa_d": 21,
    }
    layer = dict(adapted_layers(model))["model.layers.1.mlp.up_proj"]
    assert layer.rasa_A_S.shape == (6, 32)
    assert layer.rasa_A.shape == (2, 32)
    every_trained_parameter_moves(model, adapter)


def test_as_many_matrix_parameters_as_lora_of_the_same_rank() -> None:
    """The paper's budget: L (rank - k) + L k ranks are L rank; only the weights d come on top."""
    model, _ = inject(COMPONENT.build(RasaConfig(rank=4, pooled=2)))
    own = {id(each): each for _, layer in adapted_layers(model) for _, each in layer.own_parameters()}
    matrices = sum(each.numel() for each in own.values() if each.dim() == 2)
    assert matrices == sum(4 * (each.in_features + each.out_features) for _, each in adapted_layers(model))


def test_a_pool_of_all_ranks_is_refused() -> None:
    with pytest.raises(ValueError, match="pooled=4 leaves none of the 4 ranks; set at most 3"):
        RasaConfig(rank=4, pooled=4)
