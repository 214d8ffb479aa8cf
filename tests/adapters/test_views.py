"""The base under every adapter: the model of step 0 to the bit, or refused for a reason that is measured here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from catalogue import TINY, WHOLE, components, host_of, modules, small_options

from mt_conformance import BaseAdapterConformance
from mt_conformance.forward import difference, outputs
from mt_core import Adapter
from mt_core.adapters import adapted_layers, viewing
from mt_core.nn import TrainModel
from mt_core.plugins.host import PluginHost
from mt_plugin_standard.plugin import mt_adapters

ROUNDED = {"hra": 1e-6, "increlora": 1e-6}
"""Adapters whose first output is the base's but for rounding, and how far it is, as a share of it; all others give the same bits."""
REWRITES = {"delta-lora", "dude", "goat", "lora-ga", "milora", "nzlora", "olora", "pissa", "plora", "relora"}
AWAY = {"gora", "lora-da", "lora-one", "lora-sb", "lora-xs", "nlora", "ridgelora"}
"""They begin as another model than their base."""
OF_MODEL = {"bitfit", "freeze"}
"""They train parameters of the model itself."""
OVER_BITS = {"loftq"}
"""They begin as another model where the base is stored in fewer bits, and elsewhere are LoRA."""
REFUSED = REWRITES | AWAY | OF_MODEL | OVER_BITS


class Bench(BaseAdapterConformance):
    """The kit's way to train an adapter."""

    __test__ = False
    model = {"name": "llama", **TINY}
    quantizer = {"name": "nf4"}

    def __init__(self, name: str) -> None:
        self.name, self.plugin, self.options = name, modules()[name], small_options(name)

    def world(self, host: PluginHost) -> PluginHost:
        return host


class Views(NamedTuple):
    """Logits of the model without the adapter, at step 0, and of the base after some steps; and what was trained."""

    plain: Tensor
    first: Tensor
    base: Tensor
    live: Tensor
    model: TrainModel
    adapter: Adapter

    @property
    def of_model(self) -> set[str]:
        """Names of what it trains beside its layers."""
        own = {f"{name}.{each}" for name, layer in adapted_layers(self.model) for each, _ in layer.own_parameters()}
        return set(self.adapter.trainable_parameters(self.model)) - own


def views(name: str, folder: Path, *, quantized: bool = False) -> Views:
    bench = Bench(name)
    parts = bench.parts(host_of(bench.plugin), folder, quantized=quantized)
    plain = bench.base(parts).eval()
    batch = bench.batches(plain)[0]
    first = outputs(bench.adapted_model(parts)[0].eval(), batch)
    model, adapter = bench.trained_model(parts)
    live = outputs(model, batch)
    with viewing(model, "base"):
        base = outputs(model, batch)
    assert torch.equal(outputs(model, batch), live), "the model is live again"
    return Views(outputs(plain, batch), first, base, live, model, adapter)


def tried() -> list[Any]:
    """Every adapter, and over four bits where it goes."""
    bits = [name for name, each in components().items() if each.on_quantized]
    return [
        pytest.param(name, quantized) for names, quantized in ((components(), False), (bits, True)) for name in names
    ]


@pytest.mark.parametrize(("name", "quantized"), tried())
def test_the_base_is_the_model_of_step_0_to_the_bit_or_is_refused(name: str, quantized: bool, tmp_path: Path) -> None:
    found = views(name, tmp_path, quantized=quantized)
    assert found.adapter.base_is_reference == (name not in REFUSED)
    if name in REFUSED:
        return
    assert torch.equal(found.base, found.plain)
    assert difference(found.base, found.first) <= ROUNDED.get(name, 0.0)
    assert torch.equal(found.base, found.first) == (name not in ROUNDED)
    assert difference(found.live, found.first) > 1e-3, "three steps have moved it"
    assert not found.of_model


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_refused_has_no_such_base(name: str, tmp_path: Path) -> None:
    """It is another model than that of step 0, or may be, since parameters of the model are trained."""
    found = views(name, tmp_path, quantized=name in OVER_BITS)
    apart = difference(found.base, found.first)
    assert bool(found.of_model) == (name in OF_MODEL)
    assert apart > 1e-5 or name in OF_MODEL


def test_full_fine_tuning_has_no_base() -> None:
    (component,) = (each for each in mt_adapters() if each.name == WHOLE)
    assert not component.build(component.config()).base_is_reference


def test_these_are_all_of_them() -> None:
    assert set(ROUNDED) | REFUSED <= set(components())
    assert {name for name, each in components().items() if each.rewrites_base} == REWRITES
    assert {name for name, each in components().items() if not each.exact_at_init} == AWAY | {"goat"}
