"""Every adapter on a mixture whose experts are listed: it stands over their projections, and trains."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from catalogue import modules, small_options

from mt_conformance import BaseAdapterConformance
from mt_conformance.layouts import small_run
from mt_core import UsageError
from mt_core.adapters import adapted_layers, targets_of
from mt_core.nn import ListedExperts
from mt_core.plugins.host import PluginHost
from mt_train.assemble.parts import Parts
from mt_train.plugins.resolve import resolve

MIXTURE: dict[str, Any] = {
    "name": "qwen",
    "variant": "3-tiny-moe",
    "dim": 32,
    "n_layers": 1,
    "n_heads": 4,
    "n_kv_heads": 2,
    "head_dim": 8,
    "ffn_dim": 32,
    "n_experts": 4,
    "expert_dim": 32,
}
OTHERWISE: dict[str, dict[str, Any]] = {
    **{name: {"exclude": ["*.experts.*"]} for name in ("eva", "lora-da")},
    **{name: {"balance": 0.0} for name in ("goat", "lora-moe", "mola")},
}
"""Adapter that asks for the token of each input, of which an expert has some → the options with which it trains here."""
REACHED = {"freeze": 0, "ia3": 4, "eva": 0, "lora-da": 0}
"""Projections of experts that an adapter stands over, where it is not all twelve."""


class Trial(BaseAdapterConformance):
    """The kit's way of building, injecting and training, on the mixture."""

    model = MIXTURE

    def __init__(self, name: str) -> None:
        self.name = name  # type: ignore[misc]


@cache
def host() -> PluginHost:
    return PluginHost.discover()


def parts_of(adapter: dict[str, Any], **more: Any) -> Parts:
    return Parts.of(resolve(small_run(model=dict(MIXTURE), adapter=adapter, **more), host()))


@pytest.mark.parametrize("name", modules())
def test_an_adapter_takes_a_step_on_listed_experts(name: str) -> None:
    torch.manual_seed(0)
    trial, parts = Trial(name), parts_of({"name": name, **small_options(name), **OTHERWISE.get(name, {})})
    model, adapter = trial.adapted_model(parts)
    trained = set(adapter.trainable_parameters(model))
    before = {key: each.detach().clone() for key, each in model.named_parameters() if key in trained}
    losses = trial.training(parts, model, adapter, 1).run(trial.batches(model))
    assert torch.tensor(losses).isfinite().all()
    own = dict(model.named_parameters())
    changed = [key for key, value in before.items() if not torch.equal(own[key], value)]
    assert any(".experts." in key for key in changed) or all(".experts." not in key for key in trained), changed
    layers = {layer for layer, _ in adapted_layers(model) if ".experts." in layer}
    assert len(layers) == REACHED.get(name, 3 * 4)
    assert name == "freeze" or any(isinstance(each, ListedExperts) for each in model.modules())


@pytest.mark.parametrize("name", OTHERWISE)
def test_an_adapter_that_asks_for_the_token_of_each_input_says_what_to_do_before_a_step(name: str) -> None:
    trial, parts = Trial(name), parts_of({"name": name, **small_options(name)})

    with pytest.raises(UsageError, match=r"--adapter\.(exclude|balance)"):
        trial.adapted_model(parts)
    if "balance" in OTHERWISE[name]:
        left_out = parts_of({"name": name, **small_options(name), "exclude": ["*.experts.*"]})
        assert trial.adapted_model(left_out)[1].config.balance > 0  # type: ignore[attr-defined]


def test_an_adapter_that_names_projections_of_fused_experts_is_refused() -> None:
    """Attention alone would be adapted, without a word."""
    parts = parts_of({"name": "lora"})
    model = parts.model(adaptable=False)
    with pytest.raises(UsageError, match=r"'gate_proj' names projections of model\.layers\.0\.mlp\.experts.* fused"):
        targets_of(model, parts.config.adapter.options)
    assert set(targets_of(model, parts.config.adapter.options.model_copy(update={"targets": ("q_proj",)}))) == {
        "model.layers.0.self_attn.q_proj"
    }
