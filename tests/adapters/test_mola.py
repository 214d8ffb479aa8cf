"""MoLA: the number of experts by depth. Its layer is that of lora-moe."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from mixtures import output
from paper_formulas import compare_output
from peft_layers import linear, move, place, start
from shared_models import every_trained_parameter_moves
from tiny_model import inject, tiny_model

from mt_core.adapters import Place, adapted_layers
from mt_plugin_adapters.variants.mola import COMPONENT
from mt_plugin_adapters.variants.mola.config import MolaConfig
from mt_plugin_adapters.variants.mola.layer import part_of

SMALL: dict = {"rank": 2, "experts": (2, 3), "balance": 0.3}


def test_output_and_gradients_are_those_of_the_papers_formula() -> None:
    at = place("model.layers.3.self_attn.q_proj", tuple(f"model.layers.{i}.self_attn.q_proj" for i in range(4)))
    at = Place(at.name, 3, at.targets)
    ours = move(start(COMPONENT.build(MolaConfig(rank=2, alpha=4, balance=0)).layer(linear(), at)))
    assert ours.lora_gate.shape == (8, 24)
    compare_output(ours, lambda x, w, p: output(x, w, p, rank=2, scale=4 / 2, top_k=2))


def test_later_blocks_have_more_experts_and_all_parameters_train() -> None:
    model, adapter = inject(COMPONENT.build(MolaConfig(rank=2, experts=(2, 3, 5))), tiny_model(n_layers=3))
    counts = {name: len(layer.lora_gate) for name, layer in adapted_layers(model)}
    assert {counts[f"model.layers.{i}.mlp.up_proj"] for i in range(3)} == {2, 3, 5}
    assert [counts[f"model.layers.{i}.self_attn.q_proj"] for i in range(3)] == [2, 3, 5]
    model.loss_factor.value = 1 / 24
    every_trained_parameter_moves(model, adapter)


@pytest.mark.parametrize(
    ("blocks", "parts", "expected"),
    [
        (range(8), 4, [0, 0, 1, 1, 2, 2, 3, 3]),
        (range(6), 4, [0, 0, 1, 2, 2, 3]),
        (range(2), 4, [0, 2]),
        (range(20, 24), 2, [0, 0, 1, 1]),
    ],
)
def test_the_depth_is_divided_among_blocks_that_have_targets(blocks: range, parts: int, expected: list[int]) -> None:
    targets = tuple(f"layers.{i}.up" for i in blocks)
    assert [part_of(Place(f"layers.{i}.up", i, targets), parts) for i in blocks] == expected


def test_more_choices_than_some_block_has_experts_are_refused() -> None:
    with pytest.raises(ValueError, match="top_k=3 is more than the 2 experts of some blocks"):
        MolaConfig(top_k=3)
