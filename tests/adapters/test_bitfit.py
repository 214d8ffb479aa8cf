"""BitFit: the biases that are there, and those that it brings."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from peft_layers import assert_close, linear, start
from tiny_model import SHAPE, inject, tiny_model

from mt_core import UsageError
from mt_core.adapters import adapted_layers, viewing
from mt_core.nn import Batch
from mt_plugin_adapters.variants.bitfit import COMPONENT
from mt_plugin_adapters.variants.bitfit.config import BitFitConfig
from mt_plugin_adapters.variants.bitfit.layer import BiasedLinear
from mt_plugin_qwen.config import QwenConfig
from mt_plugin_qwen.model import Qwen

SMALL: dict = {"add": True}


def qwen() -> Qwen:
    return Qwen(QwenConfig(**SHAPE, head_dim=8, generation=2))


def test_the_biases_of_a_family_that_has_some_are_trained_and_nothing_else() -> None:
    model, adapter = inject(COMPONENT.build(BitFitConfig()), qwen())
    assert adapter.trainable_parameters(model) == [
        f"model.layers.{block}.self_attn.{each}_proj.bias" for block in (0, 1) for each in "qkv"
    ]
    assert not list(adapted_layers(model))


def test_targets_without_a_bias_get_one_where_asked_and_others_keep_theirs() -> None:
    model, adapter = inject(COMPONENT.build(BitFitConfig(add=True, targets=("q_proj", "o_proj"))), qwen())
    assert [name for name, _ in adapted_layers(model)] == [f"model.layers.{block}.self_attn.o_proj" for block in (0, 1)]
    assert len(adapter.trainable_parameters(model)) == 8
    assert adapter.saved_state(model) == adapter.trainable_parameters(model)


def test_an_added_bias_begins_at_zero_is_added_to_the_output_and_merges() -> None:
    base = linear(bias=False)
    layer = start(BiasedLinear(base))
    layer.bias.requires_grad_()
    x = torch.randn(5, 24)
    assert torch.equal(layer(x), base(x))
    with torch.no_grad():
        layer.bias.copy_(torch.arange(16.0))
    out = layer(x)
    assert_close(out, base(x) + torch.arange(16.0))
    out.sum().backward()
    assert_close(layer.bias.grad, torch.full((16,), 5.0))
    layer.merge()
    assert torch.equal(layer(x), out)
    layer.unmerge()
    assert torch.equal(layer(x), out)


def test_a_family_without_biases_is_refused_with_the_way_out() -> None:
    adapter = COMPONENT.build(BitFitConfig())
    with pytest.raises(UsageError, match=r"Llama has no bias among its 14 linear layers; --adapter\.add true"):
        adapter.trainable_parameters(tiny_model())


def test_the_base_is_without_the_biases_that_it_has_brought() -> None:
    """It keeps those that were there."""
    model, _ = inject(COMPONENT.build(BitFitConfig(add=True, targets=("q_proj", "o_proj"))), qwen())
    ids = torch.arange(12)[None]
    rows = Batch(ids, ids, ids, torch.zeros_like(ids)).with_index()
    with torch.no_grad():
        expected = model.head(model(rows))
        for _, layer in adapted_layers(model):
            layer.bias.fill_(1.0)
        assert not torch.allclose(model.head(model(rows)), expected)
        with viewing(model, "base"):
            assert torch.equal(model.head(model(rows)), expected)
