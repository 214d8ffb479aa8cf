"""MoSLoRA against the paper's formula."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from peft_layers import assert_close, check_start_and_merge, linear, move, place, start

from mt_plugin_adapters.variants.moslora import COMPONENT
from mt_plugin_adapters.variants.moslora.config import MosloraConfig
from mt_plugin_adapters.variants.moslora.layer import MixedLinear

SMALL: dict = {"rank": 4, "alpha": 8.0}


def layer(**options: object) -> MixedLinear:
    return start(COMPONENT.build(MosloraConfig(**SMALL, **options)).layer(linear(), place()))


def test_output_and_gradients_are_those_of_the_papers_formula() -> None:
    """W x + B W_mix A x, times alpha / rank, in float64 by autograd."""
    ours = move(layer())
    x = torch.randn(6, 24, generator=torch.Generator().manual_seed(3))
    a, m, b = (parameter.detach().double().requires_grad_() for parameter in (ours.lora_A, ours.lora_AB, ours.lora_B))
    x64 = x.double().requires_grad_()
    expected = x64 @ ours.weight.double().T + ours.bias.double() + 2.0 * ((b @ m @ a) @ x64.T).T
    x32 = x.clone().requires_grad_()
    out = ours(x32)
    assert_close(out.double(), expected)
    grad = torch.randn(6, 16, generator=torch.Generator().manual_seed(5))
    out.backward(grad)
    expected.backward(grad.double())
    assert_close(x32.grad.double(), x64.grad)
    for own, reference in ((ours.lora_A, a), (ours.lora_AB, m), (ours.lora_B, b)):
        assert_close(own.grad.double(), reference.grad)


@pytest.mark.parametrize("mixer", ["uniform", "orthogonal"])
def test_it_begins_as_the_base_and_merges_and_unmerges(mixer: str) -> None:
    check_start_and_merge(layer(mixer=mixer), linear())


def test_the_mixer_begins_within_kaimings_bounds_or_orthogonal() -> None:
    assert 0.1 < layer().lora_AB.abs().max() <= 0.5  # 1 / sqrt(rank)
    mixer = layer(mixer="orthogonal").lora_AB
    assert_close(mixer @ mixer.T, torch.eye(4))
