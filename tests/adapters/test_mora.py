"""MoRA against the paper's formulas."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from paper_formulas import compare_with_formula
from peft_layers import check_start_and_merge, linear, move, place, start

from mt_core import UsageError
from mt_plugin_adapters.variants.mora import COMPONENT
from mt_plugin_adapters.variants.mora.config import MoraConfig
from mt_plugin_adapters.variants.mora.layer import MoraLinear

SMALL: dict = {"rank": 4}
SIZES = [(24, 16), (16, 24), (30, 70), (20, 20), (64, 8)]


def layer(inputs: int = 24, outputs: int = 16, **options: object) -> MoraLinear:
    return start(COMPONENT.build(MoraConfig(**{**SMALL, **options})).layer(linear(inputs, outputs), place()))


def by_rotation(m: Tensor, inputs: int, outputs: int) -> Tensor:
    """Equation 10, number by number: the piece of output o, and what of it comes from input e."""
    side, pieces = len(m), math.ceil(inputs / len(m))
    found = []
    for output in range(outputs):
        piece, row = divmod(output % (pieces * side), side)
        turn = torch.zeros(side, side, dtype=torch.float64)
        for i in range(side // 2):
            angle = piece * 10000.0 ** (-2 * i / side)
            turn[i, i] = turn[i + side // 2, i + side // 2] = math.cos(angle)
            turn[i, i + side // 2], turn[i + side // 2, i] = -math.sin(angle), math.sin(angle)
        weights = m[row] @ turn
        columns = [(piece * side + i) % inputs for i in range(side)]
        found.append(sum(weights[i] * torch.eye(inputs, dtype=torch.float64)[each] for i, each in enumerate(columns)))
    return torch.stack(found)


def by_sharing(m: Tensor, inputs: int, outputs: int) -> Tensor:
    """Equations 7 and 8, with groups of neighbours that go in, and every r̂-th output alike."""
    groups = [int(number) for number, each in enumerate(torch.arange(inputs).tensor_split(len(m))) for _ in each]
    return m[[output % len(m) for output in range(outputs)]][:, groups]


@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
@pytest.mark.parametrize("form", ["rotation", "sharing"])
def test_output_gradients_and_merged_weight_are_those_of_the_papers_formula(
    form: str, inputs: int, outputs: int
) -> None:
    formula = {"rotation": by_rotation, "sharing": by_sharing}[form]
    ours = move(layer(inputs, outputs, form=form, rank=2))
    compare_with_formula(ours, lambda w, p: w + formula(p["mora_M"], inputs, outputs))


def test_the_square_has_at_most_as_many_numbers_as_lora_and_nearly_as_many() -> None:
    for inputs, outputs in SIZES[:4]:
        numbers, of_lora = layer(inputs, outputs, rank=3, form="sharing").mora_M.numel(), 3 * (inputs + outputs)
        assert 0 <= of_lora - numbers <= 2 * math.sqrt(of_lora)


@pytest.mark.parametrize("form", ["rotation", "sharing"])
def test_it_begins_as_the_base_and_merges_and_unmerges(form: str) -> None:
    check_start_and_merge(layer(form=form), linear())


def test_a_square_larger_than_the_inputs_is_refused_with_the_largest_rank() -> None:
    with pytest.raises(UsageError, match="at most 15 there"):
        layer(rank=17)
    assert layer(rank=15).mora_M.shape == (24, 24)
