"""A LoRA of every adapter that merges, whatever it stands over: all readers compute what the run does.

The adapters take a few steps on a small model, as the kit trains them. The rules of the readers are applied to the tensors as they are
written, and compared with what the weights have become.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

TESTS = Path(__file__).parents[2]
sys.path.insert(0, str(TESTS / "adapters"))
sys.path.insert(0, str(TESTS / "train/adapters"))

from catalogue import TINY, components, small_options  # noqa: E402
from lora_readers import refuse_distance  # noqa: E402

from mt_conformance import BaseAdapterConformance  # noqa: E402
from mt_conformance.layouts import small_run  # noqa: E402
from mt_core import UsageError  # noqa: E402
from mt_core.adapters import adapted_layers  # noqa: E402
from mt_core.nn import AdaptedLinear  # noqa: E402
from mt_core.plugins.host import PluginHost  # noqa: E402
from mt_tools.convert.adapter_lora import change_of, lora_config, name_tensors  # noqa: E402
from mt_train.assemble.parts import Parts  # noqa: E402
from mt_train.plugins.resolve import resolve  # noqa: E402

GPT2 = {"model_type": "gpt2", "vocab_size": 259, "n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 64}
SMALL = {"dim": 32, "n_layers": 1, "n_heads": 4, "n_kv_heads": 2}
MODELS: dict[str, dict[str, Any]] = {
    "linear layers": {"name": "llama", **TINY},
    "listed experts": {
        "name": "qwen",
        "variant": "3-tiny-moe",
        **SMALL,
        "head_dim": 8,
        "ffn_dim": 32,
        "n_experts": 2,
        "expert_dim": 32,
    },
    "transposed weights": {"name": "huggingface", "config": GPT2},
}
OTHERWISE: dict[str, dict[str, Any]] = {name: {"exclude": ["*.experts.*"]} for name in ("eva", "lora-da")}
"""Adapters that ask for the token of each input, of which an expert has some."""
MERGEABLE = sorted(name for name, each in components().items() if each.mergeable)
NO_LINEAR_CHANGE = {"bitfit": "changes the bias", "freeze": "no layer with an adapter"}
ALL = 64
"""More directions than any layer here has."""
STEPS = 2


class Trial(BaseAdapterConformance):
    """The kit's way of building, injecting and training."""

    def __init__(self, name: str) -> None:
        self.name = name  # type: ignore[misc]


@cache
def host() -> PluginHost:
    return PluginHost.discover()


def refuse_other_changes(name: str, model: dict[str, Any], options: dict[str, Any]) -> None:
    """Train, write, and let every reader compute; also beside ``delta_weight`` of an adapter whose base is as it was."""
    parts = Parts.of(resolve(small_run(model=dict(model), adapter={"name": name, **options}), host()))
    trial = Trial(name)
    adapted, _ = trial.trained_model(parts, STEPS)
    base = trial.base(parts)
    found = change_of(adapted, base, ALL)
    tensors, config = name_tensors(found), lora_config(found, adapted)
    layers = dict(adapted_layers(adapted))
    assert layers.keys() == found.keys()
    for place, layer in layers.items():
        before_FE = weight_of(base.get_submodule(place))
        refuse_distance(config, tensors, place, layer.merged_weight().detach() - before_FE, 1e-6)
        adds = type(layer).merged_weight is AdaptedLinear.merged_weight  # others turn their input, or the base
        if adds and torch.equal(layer.base_weight(), before_FE):
            delta_FE = layer.delta_weight().detach()
            rounding = 2e-7 * float(before_FE.norm()) / max(float(delta_FE.norm()), 1e-9)  # of the sum in fp32
            refuse_distance(config, tensors, place, delta_FE, 1e-6 + rounding)


def weight_of(layer: nn.Module) -> Tensor:
    return layer.weight.detach() if isinstance(layer, nn.Linear) else layer.dense_weight()  # type: ignore[operator]


@pytest.mark.parametrize("name", [each for each in MERGEABLE if each not in NO_LINEAR_CHANGE])
def test_all_readers_compute_the_change_of_every_adapter_that_merges(name: str) -> None:
    refuse_other_changes(name, MODELS["linear layers"], small_options(name))


@pytest.mark.parametrize("model", ["listed experts", "transposed weights"])
@pytest.mark.parametrize("name", ["lora", "pissa", "oft", "vera"])
def test_all_readers_compute_the_change_over_every_kind_of_weight(name: str, model: str) -> None:
    refuse_other_changes(name, MODELS[model], small_options(name))


@pytest.mark.parametrize(("name", "says"), NO_LINEAR_CHANGE.items())
def test_what_is_no_change_of_a_layers_weight_is_no_lora(name: str, says: str) -> None:
    run = small_run(model=MODELS["linear layers"], adapter={"name": name, **small_options(name)})
    parts, trial = Parts.of(resolve(run, host())), Trial(name)
    with pytest.raises(UsageError, match=says):
        change_of(trial.trained_model(parts, STEPS)[0], trial.base(parts), None)
