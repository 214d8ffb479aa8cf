"""ShareLoRA against the paper's formula, which is LoRA's: what is new is which layers have which matrix."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parent))

from paper_formulas import compare_with_formula
from peft_layers import assert_close, check_start_and_merge, linear, move, place, start
from shared_models import batch, every_trained_parameter_moves, parameters_of
from tiny_model import inject

from mt_core.adapters import adapted_layers
from mt_plugin_adapters.variants.sharelora import COMPONENT
from mt_plugin_adapters.variants.sharelora.config import ShareLoraConfig
from mt_plugin_adapters.variants.sharelora.layer import ShareLoraLinear

SMALL: dict = {"rank": 4}
COUNTS = {"A": (7, 14), "B": (14, 7), "AB": (7, 7)}
"""Different matrices A and B in two blocks of seven projections."""


def layer(share: str) -> ShareLoraLinear:
    return start(COMPONENT.build(ShareLoraConfig(**SMALL, share=share)).layer(linear(), place()))


@pytest.mark.parametrize("share", COUNTS)
def test_output_gradients_and_merged_weight_are_those_of_the_papers_formula(share: str) -> None:
    compare_with_formula(move(layer(share)), lambda w, p: w + 16 / 4 * p["lora_B"] @ p["lora_A"])


@pytest.mark.parametrize("share", COUNTS)
def test_it_begins_as_the_base_and_merges_and_unmerges(share: str) -> None:
    check_start_and_merge(layer(share), linear())


@pytest.mark.parametrize("share", COUNTS)
def test_what_is_shared_is_one_parameter_in_all_blocks_and_everything_trains(share: str) -> None:
    model, adapter = inject(COMPONENT.build(ShareLoraConfig(**SMALL, share=share)))
    found = parameters_of(model)
    assert (len(found["lora_A"]), len(found["lora_B"])) == COUNTS[share]
    every_trained_parameter_moves(model, adapter)


def test_the_gradient_of_a_shared_matrix_is_the_sum_of_what_its_layers_would_have_alone() -> None:
    """Against the same model with A in each layer by itself."""
    gradients = {}
    for share in ("A", "B"):  # "B" shares no A: its A are given the values of the shared ones
        model, _ = inject(COMPONENT.build(ShareLoraConfig(**SMALL, share=share)))
        layers = dict(adapted_layers(model))
        generator = torch.Generator().manual_seed(6)
        values = {name: torch.randn(each.lora_B.shape, generator=generator) for name, each in layers.items()}
        for name, each in layers.items():
            kind = name.partition("layers.")[2][2:]
            first = f"model.layers.0.{kind}"
            each.lora_A.data.fill_(0).add_(torch.randn(each.lora_A.shape, generator=torch.Generator().manual_seed(7)))
            each.lora_B.data.copy_(values[first])
        rows = batch()
        functional.cross_entropy(model.head(model(rows)).flatten(0, 1), rows.labels.flatten()).backward()
        gradients[share] = [layers[f"model.layers.{i}.self_attn.q_proj"].lora_A.grad for i in range(2)]
    assert_close(gradients["A"][0], gradients["B"][0] + gradients["B"][1])
