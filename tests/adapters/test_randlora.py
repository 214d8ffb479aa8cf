"""RandLoRA against peft's, and against the paper's sum."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
from peft import RandLoraConfig as PeftConfig
from peft.tuners._buffer_dict import BufferDict
from peft.tuners.randlora.layer import Linear as PeftRandLora
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from paper_formulas import compare_with_formula
from peft_layers import check_start_and_merge, compare, linear, move, start
from shared_models import every_trained_parameter_moves, parameters_of
from tiny_model import inject

from mt_core.nn import SharedParameters
from mt_plugin_adapters.variants.randlora import COMPONENT
from mt_plugin_adapters.variants.randlora.config import RandLoraConfig
from mt_plugin_adapters.variants.randlora.layer import RandLoraLinear

SMALL: dict = {"rank": 6, "alpha": 12.0}
SIZES = [(24, 16), (16, 24), (18, 18)]


def layer(inputs: int = 24, outputs: int = 16) -> RandLoraLinear:
    """Return where the largest target has 40 inputs and 20 outputs."""
    return start(RandLoraLinear(linear(inputs, outputs), SharedParameters(), RandLoraConfig(**SMALL), (20, 40)))


@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_output_gradients_and_merged_weight_equal_pefts_with_matrices_of_a_larger_target(
    inputs: int, outputs: int
) -> None:
    ours = move(layer(inputs, outputs))
    shared = [BufferDict({"default": each.data}) for each in (ours.randlora_A, ours.randlora_B)]
    config = PeftConfig(r=6, randlora_alpha=12)
    theirs = PeftRandLora(copy.deepcopy(linear(inputs, outputs)), *shared, "default", config=config, r=6)
    names = ("randlora_lambda", "randlora_gamma")
    compare(ours, theirs, {name: getattr(theirs, name)["default"] for name in names})


def test_the_weight_is_the_papers_sum_of_products_with_two_diagonals() -> None:
    """peft counts the columns of B in another order than the rows of A, so that they are taken one by one here: the k-th of each."""

    def formula(w: Tensor, p: dict[str, Tensor]) -> Tensor:
        rank, products = p["randlora_lambda"].shape
        columns = p["randlora_B"][:24, :products].flatten(1)
        update = torch.zeros(24, 16, dtype=torch.float64)
        for j in range(products):
            b_j = torch.stack([columns[:, each * products + j] for each in range(rank)], 1)
            a_j = p["randlora_lambda"][:, j].diag() @ p["randlora_A"][:, 0, :16] @ p["randlora_gamma"][j].diag()
            update = update + b_j @ a_j
        return w + 12 / 6 * update

    compare_with_formula(move(layer(16, 24)), formula)


def test_the_update_has_full_rank() -> None:
    assert torch.linalg.matrix_rank(move(layer()).delta_weight()) == 16


@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_it_begins_as_the_base_and_merges_and_unmerges(inputs: int, outputs: int) -> None:
    check_start_and_merge(layer(inputs, outputs), linear(inputs, outputs))


def test_first_values_are_pefts() -> None:
    ours = layer()
    theirs = PeftRandLora(
        linear(),
        *(BufferDict({"default": each.data}) for each in (ours.randlora_A, ours.randlora_B)),
        "default",
        config=PeftConfig(r=6, randlora_alpha=12),
        r=6,
    )
    assert torch.equal(ours.randlora_lambda, theirs.randlora_lambda["default"])
    assert torch.equal(ours.randlora_gamma, theirs.randlora_gamma["default"])
    assert ours.randlora_B.std().item() == pytest.approx(1, abs=1e-6)


def test_all_layers_share_the_random_matrices_and_train_the_diagonals() -> None:
    model, adapter = inject(COMPONENT.build(RandLoraConfig(**SMALL)))
    found = parameters_of(model)
    assert {name: len(each) for name, each in found.items()} == {
        "randlora_A": 1,
        "randlora_B": 1,
        "randlora_lambda": 14,
        "randlora_gamma": 14,
    }
    assert len(adapter.trainable_parameters(model)) == 28
    assert len(adapter.saved_state(model)) == 30
    every_trained_parameter_moves(model, adapter)
