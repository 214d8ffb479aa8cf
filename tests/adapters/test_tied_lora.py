"""Tied-LoRA against the paper's formula."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from paper_formulas import compare_with_formula
from peft_layers import check_start_and_merge, linear, move, place, start
from shared_models import every_trained_parameter_moves, parameters_of
from tiny_model import inject

from mt_core import LowRankConfig
from mt_plugin_adapters.variants.tied_lora import COMPONENT
from mt_plugin_adapters.variants.tied_lora.layer import TiedLinear

SMALL: dict = {"rank": 4}


def layer() -> TiedLinear:
    return start(COMPONENT.build(LowRankConfig(**SMALL)).layer(linear(), place()))


def test_output_gradients_and_merged_weight_are_those_of_the_papers_formula() -> None:
    """Equation 2: the matrix of v on its diagonal, B, that of u, A."""
    compare_with_formula(
        move(layer()),
        lambda w, p: (
            w + 16 / 4 * p["tied_lora_v"].diag() @ p["tied_lora_B"] @ p["tied_lora_u"].diag() @ p["tied_lora_A"]
        ),
    )


def test_it_begins_as_the_base_and_merges_and_unmerges() -> None:
    check_start_and_merge(layer(), linear())


def test_all_blocks_have_one_pair_for_each_kind_of_projection_and_it_is_trained() -> None:
    model, adapter = inject(COMPONENT.build(LowRankConfig(**SMALL)))
    found = parameters_of(model)
    assert {name: len(found[name]) for name in sorted(found)} == {
        **{f"tied_lora_{each}": 7 for each in ("A", "B")},
        **{f"tied_lora_{each}": 14 for each in ("u", "v")},
    }
    assert len(adapter.trainable_parameters(model)) == 2 * 7 + 2 * 14
    every_trained_parameter_moves(model, adapter)


def test_layers_of_another_rank_share_among_themselves() -> None:
    model, _ = inject(COMPONENT.build(LowRankConfig(**SMALL, ranks={"model.layers.0.*": 2})))
    assert len(parameters_of(model)["tied_lora_A"]) == 14
