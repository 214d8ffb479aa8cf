"""DenseLoRA against the paper's formula."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from paper_formulas import compare_output
from peft_layers import linear, move, place, start
from shared_models import every_trained_parameter_moves, parameters_of
from tiny_model import inject

from mt_core import LowRankConfig, UsageError
from mt_plugin_adapters.variants.denselora import COMPONENT
from mt_plugin_adapters.variants.denselora.layer import DenseLoraLinear

SMALL: dict = {"rank": 4}


def layer() -> DenseLoraLinear:
    return start(COMPONENT.build(LowRankConfig(**SMALL)).layer(linear(), place()))


def phi(x: Tensor) -> Tensor:
    """x times the normal distribution's share below x."""
    return x * (1 + torch.erf(x / 2**0.5)) / 2


def test_output_and_gradients_are_those_of_the_papers_formula() -> None:
    def formula(x: Tensor, w: Tensor, p: dict[str, Tensor]) -> Tensor:
        inner = p["denselora_M"] @ phi(p["denselora_encoder"] @ x.mT)
        return x @ w.mT + 16 / 4 * phi(p["denselora_decoder"] @ inner).mT

    compare_output(move(layer()), formula)


def test_it_begins_as_the_base_and_says_that_it_cannot_be_merged() -> None:
    ours, x = layer(), torch.randn(3, 24)
    assert torch.equal(ours(x), linear()(x))
    assert not COMPONENT.mergeable
    with pytest.raises(UsageError, match="not linear in its inputs"):
        ours.merge()
    assert torch.equal(ours(x), linear()(x))


def test_all_blocks_have_one_encoder_and_decoder_for_each_kind_of_projection_and_all_train() -> None:
    model, adapter = inject(COMPONENT.build(LowRankConfig(**SMALL)))
    assert {name: len(each) for name, each in parameters_of(model).items()} == {
        "denselora_encoder": 7,
        "denselora_decoder": 7,
        "denselora_M": 14,
    }
    every_trained_parameter_moves(model, adapter)
