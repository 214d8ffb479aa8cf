"""BSLoRA against the paper's formulas."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from paper_formulas import compare_with_formula
from peft_layers import check_start_and_merge, linear, move, place, start
from shared_models import every_trained_parameter_moves, parameters_of
from tiny_model import inject

from mt_core import UsageError
from mt_plugin_adapters.variants.bslora import COMPONENT
from mt_plugin_adapters.variants.bslora.config import BsLoraConfig
from mt_plugin_adapters.variants.bslora.layer import BsLoraLinear

SMALL: dict = {"size": 16}
FITS = ("slice", "kron")


def layer(fit: str) -> BsLoraLinear:
    """Of 24 inputs and 16 outputs, where the largest target has 40 and 20; with kron of 8 x 8."""
    adapter = COMPONENT.build(BsLoraConfig(fit=fit, size=8, rank=3, rank_block=2, rank_model=4, alpha=6))
    adapter.most = (20, 40)
    return start(adapter.layer(linear(), place()))


def blocks(factors: Tensor, matrix: Tensor) -> Tensor:
    """The Kronecker product, written out as a matrix of matrices."""
    return torch.cat([torch.cat([each * matrix for each in row], 1) for row in factors])


@pytest.mark.parametrize("fit", FITS)
def test_output_gradients_and_merged_weight_are_those_of_the_papers_formula(fit: str) -> None:
    def shared(p: dict[str, Tensor], scope: str) -> Tensor:
        a, b = p[f"bslora_A_{scope}"], p[f"bslora_B_{scope}"]
        if fit == "slice":
            return b[2:18] @ a[:, 8:32]
        return blocks(p[f"bslora_column_{scope}"], b) @ blocks(p[f"bslora_row_{scope}"], a)

    compare_with_formula(
        move(layer(fit)),
        lambda w, p: w + 6 / 3 * (p["lora_B"] @ p["lora_A"] + shared(p, "block") + shared(p, "model")),
    )


@pytest.mark.parametrize("fit", FITS)
def test_it_begins_as_the_base_and_merges_and_unmerges(fit: str) -> None:
    check_start_and_merge(layer(fit), linear())


@pytest.mark.parametrize("fit", FITS)
def test_a_block_has_a_pair_and_the_model_has_one_and_all_parameters_train(fit: str) -> None:
    model, adapter = inject(COMPONENT.build(BsLoraConfig(**SMALL, fit=fit)))
    found = {name: len(each) for name, each in parameters_of(model).items()}
    assert {name: found[name] for name in found if "_A" in name or "_B" in name} == {
        **{f"lora_{each}": 14 for each in "AB"},
        **{f"bslora_{each}_block": 2 for each in "AB"},
        **{f"bslora_{each}_model": 1 for each in "AB"},
    }
    every_trained_parameter_moves(model, adapter, steps=4)


def test_a_size_that_does_not_divide_a_projection_is_refused() -> None:
    with pytest.raises(UsageError, match=r"adapter.size: 5 does not divide .*q_proj, which is 32 x 32"):
        inject(COMPONENT.build(BsLoraConfig(fit="kron", size=5)))
