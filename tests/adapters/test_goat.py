"""GOAT against the paper's formulas."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from mixtures import output
from paper_formulas import compare_output
from peft_layers import assert_close, linear, move, place, spaced_linear, start
from shared_models import every_trained_parameter_moves
from tiny_model import inject

from mt_core import UsageError
from mt_plugin_adapters.variants.goat import COMPONENT
from mt_plugin_adapters.variants.goat.config import GoatConfig
from mt_plugin_adapters.variants.goat.layer import GoatLinear

SMALL: dict = {"rank": 2, "experts": 4, "balance": 0.3}
EXACT_WITHIN: float = 0.1  # what a token takes of the experts is not the average that the weight has lost
SCALE = (3 * 24 / 2) ** 0.5


def layer(base: torch.nn.Linear | None = None, **options: object) -> GoatLinear:
    config = GoatConfig(**{**SMALL, "balance": 0.0, **options})
    return start(COMPONENT.build(config).layer(base or linear(), place()))


def test_output_and_gradients_are_those_of_the_papers_formula() -> None:
    compare_output(move(layer()), lambda x, w, p: output(x, w, p, rank=2, scale=SCALE, top_k=2))


def test_experts_begin_as_segments_of_the_weights_singular_values_and_the_weight_loses_their_mean() -> None:
    """Of 16 values in four segments each expert has the first two: 0 1, 4 5, 8 9, 12 13."""
    ours, weight = layer(spaced_linear(), rho=5.0), spaced_linear().weight.double()
    u, s, v = torch.linalg.svd(weight, full_matrices=False)
    mean = torch.zeros_like(weight)
    for expert in range(4):
        numbers = [4 * expert, 4 * expert + 1]
        product = ours.lora_B[:, 2 * expert : 2 * expert + 2] @ ours.lora_A[2 * expert : 2 * expert + 2]
        segment = u[:, numbers] @ s[numbers].diag() @ v[numbers]
        assert_close(product.double(), segment / (SCALE * 5.0))
        a, b = ours.lora_A[2 * expert : 2 * expert + 2], ours.lora_B[:, 2 * expert : 2 * expert + 2]
        assert_close(a.norm(dim=1), b.norm(dim=0))
        mean += SCALE / 4 * product.double()
    assert_close(ours.weight.double(), weight - mean)


def test_an_even_load_gives_the_base_and_the_first_output_is_near_it() -> None:
    """All experts with a quarter each are what the weight has lost; a token's two best are something else."""
    x, expected = torch.randn(3, 5, 24), None
    expected = linear()(x)
    even = layer(top_k=4)
    even.lora_gate.data.zero_()
    assert_close(even(x), expected)
    distance = ((layer()(x) - expected).norm() / expected.norm()).item()
    assert 1e-3 < distance < 0.1
    assert not COMPONENT.exact_at_init


def test_eta_scales_as_its_root() -> None:
    assert layer(eta=4.0).experts.scale == pytest.approx(2 * SCALE)


def test_all_parameters_and_only_those_train_and_the_rewritten_base_is_saved() -> None:
    model, adapter = inject(COMPONENT.build(GoatConfig(**{**SMALL, "balance": 0.01})))
    assert {name.rpartition(".")[2] for name in adapter.saved_state(model)} == {
        "weight",
        "lora_A",
        "lora_B",
        "lora_gate",
    }
    model.loss_factor.value = 1 / 24
    every_trained_parameter_moves(model, adapter)


def test_it_says_that_it_cannot_be_merged_and_refuses_more_directions_than_a_segment_has() -> None:
    with pytest.raises(UsageError, match="another update for every token"):
        layer().merge()
    with pytest.raises(UsageError, match=r"makes 4 segments of 4 directions, and an expert asks for 5"):
        layer(rank=5)
