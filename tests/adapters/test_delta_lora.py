"""Delta-LoRA against the paper's algorithm."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))

from peft_layers import assert_close, check_start_and_merge, linear, place, start
from plain_engine import PlainContext, train

from mt_plugin_adapters.variants.delta_lora import COMPONENT
from mt_plugin_adapters.variants.delta_lora.adapter import DeltaLora
from mt_plugin_adapters.variants.delta_lora.config import DeltaLoraConfig

SMALL: dict = {"rank": 4, "alpha": 8.0, "ratio": 0.5, "start_steps": 2}


def model() -> tuple[nn.Sequential, DeltaLora]:
    adapter = COMPONENT.build(DeltaLoraConfig(**SMALL))
    return nn.Sequential(*(start(adapter.layer(linear(*size), place())) for size in ((24, 16), (16, 8)))), adapter


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(7)
    return [(torch.randn(9, 24, generator=generator), torch.randn(9, 8, generator=generator)) for _ in range(count)]


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([each for each in net.parameters() if each.requires_grad], lr=0.05)


def test_the_run_is_that_of_the_papers_algorithm() -> None:
    """Algorithm 1 in float64: W(t+1) = W(t) + ratio · alpha / r · (A(t+1) B(t+1) - A(t) B(t)) for t beyond the first steps."""
    net, adapter = model()
    reference = [
        [each.detach().double() for each in (layer.weight, layer.lora_A, layer.lora_B, layer.bias)]
        for layer in model()[0]
    ]
    for _ in train(net, adapter, sgd(net), batches(6)):
        pass
    for step, (x, y) in enumerate(batches(6), start=1):
        pairs = [(a.requires_grad_(), b.requires_grad_()) for _, a, b, _ in reference]
        hidden = x.double()
        for (weight, _, _, bias), (a, b) in zip(reference, pairs, strict=True):
            hidden = hidden @ (weight + 2.0 * b @ a).T + bias
        gradients = iter(torch.autograd.grad((hidden - y).square().mean(), [each for pair in pairs for each in pair]))
        updated = []
        for (weight, _, _, bias), (a, b) in zip(reference, pairs, strict=True):
            new_a, new_b = (each.detach() - 0.05 * next(gradients) for each in (a, b))
            moved = 0.5 * 2.0 * (new_b @ new_a - (b @ a).detach()) if step > 2 else 0.0
            updated.append([weight + moved, new_a, new_b, bias])
        reference = updated
    for layer, (weight, a, b, _) in zip(net, reference, strict=True):
        assert_close(layer.weight.double(), weight)
        assert_close(layer.lora_A.double(), a)
        assert_close(layer.lora_B.double(), b)


def test_the_weight_stays_in_the_first_steps_and_moves_after() -> None:
    net, adapter = model()
    first = net[0].weight.clone()
    moved = [not torch.equal(net[0].weight, first) for _ in train(net, adapter, sgd(net), batches(4))]
    assert moved == [False, False, True, True]


def test_a_refused_step_leaves_the_weight_as_it_was() -> None:
    net, adapter = model()
    optimizer = sgd(net)
    for _ in train(net, adapter, optimizer, batches(3)):
        pass
    before = net[0].weight.clone()
    adapter.after_backward(PlainContext(net, optimizer, 4, 6))
    assert torch.equal(net[0].weight, before)


def test_it_begins_as_the_base_and_merges_and_unmerges() -> None:
    check_start_and_merge(model()[0][0], linear())


def test_dropout_is_refused() -> None:
    with pytest.raises(ValueError, match="dropout"):
        DeltaLoraConfig(dropout=0.1)
