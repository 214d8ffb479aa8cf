"""Every adapter named alone, over the default size of a family: with no option it takes it, or says what it needs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from catalogue import components
from tiny_model import inject

from mt_core import UsageError
from mt_core.nn import Batch, tensor_generator
from mt_plugin_adapters.probed import ProbedAdapter
from mt_plugin_llama import plugin as llama
from mt_plugin_llama.model import Llama

ASKS = {"bitfit": r"no bias among its 14 linear layers; --adapter\.add true gives its projections some"}
"""Those that have nothing to train in a model without biases."""


def default_model() -> Llama:
    """Two blocks of what ``--model llama`` trains, with values."""
    family = next(each for each in llama.mt_model_configs() if each.name == "llama")
    shape = {**family.variants[family.default_variant], "n_layers": 2}
    model = Llama(family.config(**shape))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            model.init_tensor(name, parameter, tensor_generator(0, name))
    return model


@pytest.mark.parametrize("name", [name for name in components() if name not in ASKS])
def test_an_adapter_without_options_trains_the_default_model(name: str) -> None:
    component, model = components()[name], default_model()
    adapter = component.build(component.config())
    if isinstance(adapter, ProbedAdapter):  # its first values need rows of a run; its shapes do not
        assert adapter.probed_layers(model)
        adapter.inject(model)
        assert adapter.trainable_parameters(model)
        return
    inject(adapter, model)
    ids = torch.arange(20)[None]
    zeros = torch.zeros_like(ids)
    logits = model.head(model(Batch(ids, zeros, ids, zeros)))
    assert logits.isfinite().all()
    logits.square().mean().backward()
    assert any(each.grad is not None and each.grad.any() for each in model.parameters()), "something learns"


@pytest.mark.parametrize("name", ASKS)
def test_an_adapter_with_nothing_to_train_says_what_it_needs(name: str) -> None:
    component, model = components()[name], default_model()
    adapter = component.build(component.config())
    adapter.inject(model)
    with pytest.raises(UsageError, match=ASKS[name]):
        adapter.trainable_parameters(model)
    more, adapter = inject(component.build(component.config(add=True)), default_model())
    assert adapter.trainable_parameters(more)
