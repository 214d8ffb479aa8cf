"""PRoLoRA against the paper's formula, number by number."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from paper_formulas import compare_with_formula
from peft_layers import check_start_and_merge, linear, move, place, start
from shared_models import every_trained_parameter_moves
from tiny_model import inject

from mt_core import UsageError
from mt_plugin_adapters.variants.prolora import COMPONENT
from mt_plugin_adapters.variants.prolora.config import ProLoraConfig
from mt_plugin_adapters.variants.prolora.layer import ProLoraLinear

SMALL: dict = {"rank": 4}
FORMS = [(2, 2, 1), (3, 4, 0), (6, 2, 2), (1, 1, 1)]


def layer(pieces_in: int = 2, pieces_out: int = 2, unshared: int = 1) -> ProLoraLinear:
    options = {"pieces_in": pieces_in, "pieces_out": pieces_out, "unshared": unshared, "rank": 5, "alpha": 10}
    return start(COMPONENT.build(ProLoraConfig(**options)).layer(linear(), place()))


def written_out(piece: Tensor, pieces: int) -> Tensor:
    """Row i of copy j is row i - j · stride of the piece, counted around."""
    rows, columns = piece.shape
    stride = max(rows // pieces, 1)
    return torch.stack(
        [
            torch.stack([piece[(i - c // columns * stride) % rows, c % columns] for c in range(columns * pieces)])
            for i in range(rows)
        ]
    )


@pytest.mark.parametrize(("pieces_in", "pieces_out", "unshared"), FORMS)
def test_output_gradients_and_merged_weight_are_those_of_the_papers_formula(
    pieces_in: int, pieces_out: int, unshared: int
) -> None:
    def formula(w: Tensor, p: dict[str, Tensor]) -> Tensor:
        a, b = written_out(p["prolora_A_0"], pieces_in), written_out(p["prolora_B_0"].mT, pieces_out).mT
        if unshared:
            a, b = torch.cat([p["prolora_A"], a]), torch.cat([p["prolora_B"], b], 1)
        assert a.shape == (5, 24)
        assert b.shape == (16, 5)
        return w + 10 / 5 * b @ a

    compare_with_formula(move(layer(pieces_in, pieces_out, unshared)), formula)


@pytest.mark.parametrize(("pieces_in", "pieces_out", "unshared"), FORMS)
def test_it_begins_as_the_base_and_merges_and_unmerges(pieces_in: int, pieces_out: int, unshared: int) -> None:
    check_start_and_merge(layer(pieces_in, pieces_out, unshared), linear())


def test_pieces_begin_within_the_bound_of_the_whole_matrix_not_of_the_piece() -> None:
    piece = layer(pieces_in=6).prolora_A_0
    assert 0.9 * 24**-0.5 < piece.abs().max().item() <= 24**-0.5


def test_turned_pieces_raise_the_rank_over_that_of_plain_copies() -> None:
    """A of 4 rows out of 8 columns of numbers: the copies differ, so that no two columns of the whole are alike."""
    columns = written_out(torch.randn(4, 6, generator=torch.Generator().manual_seed(0)), 4)
    assert torch.unique(columns, dim=1).shape[1] == 24


def test_all_parameters_train_and_they_are_fewer_than_those_of_lora() -> None:
    model, adapter = inject(COMPONENT.build(ProLoraConfig(rank=5, pieces_in=4, pieces_out=4)))
    own = [each.numel() for name, each in model.named_parameters() if "prolora" in name]
    of_lora = sum(5 * (32 + each) for each in (32, 16, 16, 32)) + 5 * 3 * (32 + 48)
    assert sum(own) == 2 * of_lora * 2 / 5  # one rank of five is free, four are a quarter each
    every_trained_parameter_moves(model, adapter)


def test_pieces_that_do_not_divide_and_ranks_that_do_not_repeat_are_refused() -> None:
    with pytest.raises(UsageError, match=r"adapter.pieces_in: 5 does not divide the 24 of model.layers.0"):
        layer(pieces_in=5)
    with pytest.raises(ValueError, match="unshared=5 leaves none of 5 ranks to repeat; set at most 4"):
        layer(unshared=5)
