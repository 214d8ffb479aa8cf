"""The portable form of a LoRA: every reader of such files multiplies it to the change of the weights that the run has.

The readers' rules are applied to the tensors as they are written, in float64, and compared with ``delta_weight()`` to 1e-6 of its
size: fp32 keeps 6e-8 of a number, and there is one more product in it.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mt_core import AdapterComponent
from mt_core.adapters import adapted_layers
from mt_core.plugins.host import PluginHost
from mt_train.adapters.portable import fold, is_lora, largest_rank, portable_config, unfold
from mt_train.assemble.discovery import discover_plugins

sys.path.insert(0, str(Path(__file__).parent))  # for lora_readers

from lora_readers import refuse_distance

WRITERS = ["lora", "eva", "gora", "loftq", "lora-da", "lora-fa", "lora-one", "lora-plus", "lora-pro"]
PLAIN = {"rank": 4, "alpha": 5.0}
MIXED = {
    "rank": 4,
    "alpha": 5.0,
    "rslora": True,
    "ranks": {"mlp.up_proj": 6},
    "alphas": {"layers.1.self_attn.q_proj": 3.0},
}
PLAN = {"ranks": {"model.layers.0.self_attn.q_proj": 7, "model.layers.1.mlp.down_proj": 1}}
"""What adapters that look at rows decide."""


SMALL = {"dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 48, "vocab_size": 64, "max_seq_len": 64}


@cache
def host() -> PluginHost:
    """All that is installed, discovered once."""
    return discover_plugins()


def lora_writers() -> list[str]:
    """The adapters that write a LoRA and nothing besides, whoever offers them."""
    return [
        offer.component.name
        for offer in host().offers("adapter")
        if isinstance(offer.component, AdapterComponent)
        and offer.component.mergeable
        and set(PLAIN) <= set(offer.component.config.model_fields)
        and _write(offer.component.name, PLAIN) is not None
    ]


def _write(name: str, options: dict[str, Any]) -> tuple[Any, Any, dict[str, Any], dict[str, Tensor]] | None:
    """Model, form, and config and tensors of the folder; ``None`` for one that writes something else."""
    component = host().get("adapter", name).component
    family = host().get("model", "llama").component
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = host().get("train_model", "llama").component.build(family.config(**SMALL))
        known = (
            {"target_rank": options["rank"], **options} if "target_rank" in component.config.model_fields else options
        )
        known = {key: value for key, value in known.items() if key in component.config.model_fields}
        adapter = component.build(component.config(**known))
        adapter.plan, adapter.has_values = (PLAN if "probe_steps" in component.config.model_fields else {}), True
        adapter.inject(model)
        form = adapter.peft_form(model)
        if form is None or not is_lora(form):
            return None
        own = dict(model.named_parameters())
        for ours in form.names:
            own[ours].data.normal_()
    rank = largest_rank(form)
    tensors = {theirs: fold(form, theirs, own[ours].data, rank) for ours, theirs in form.names.items()}
    return model, form, portable_config(form.config, rank), tensors


def test_every_adapter_that_writes_a_lora_is_asked_here() -> None:
    assert sorted(lora_writers()) == sorted(WRITERS)


@pytest.mark.parametrize("options", [PLAIN, MIXED], ids=["plain", "mixed"])
@pytest.mark.parametrize("name", WRITERS)
def test_all_readers_compute_the_change_of_the_run(name: str, options: dict[str, Any]) -> None:
    written = _write(name, options)
    assert written is not None
    model, _, config, tensors = written
    for place, layer in adapted_layers(model):
        refuse_distance(config, tensors, place, layer.delta_weight(), 1e-6)


def test_a_small_factor_leaves_the_digits_of_b_in_fp16() -> None:
    """1/64 of 1e-4, a usual size, is below the 6e-5 from which on fp16 keeps all its digits, and 64 times 2000 above its largest."""
    for alpha, size in ((1.0, 1e-4), (4096.0, 2e3)):
        _, form, _, _ = _write("lora", {"rank": 64, "alpha": alpha})  # type: ignore[misc]
        name = next(each for each in form.names.values() if "lora_B" in each)
        value = (size * torch.randn(32, 64, generator=torch.Generator().manual_seed(0))).half()
        folded = fold(form, name, value, 64)
        torch.testing.assert_close(folded.double(), value.double() * alpha / 64, rtol=1e-7, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_folded_is_unfolded_to_the_rounding_of_a_division(dtype: torch.dtype) -> None:
    """B in bf16 is written in fp32 where the factor is no power of two: bf16 would keep 8 bits of the product."""
    model, form, _, _ = _write("lora", MIXED)  # type: ignore[misc]
    own = {theirs: dict(model.named_parameters())[ours].data.to(dtype) for ours, theirs in form.names.items()}
    rank = largest_rank(form)
    folded = {name: fold(form, name, value, rank) for name, value in own.items()}
    assert {min(each.shape) for each in folded.values()} == {rank}
    for name, load in unfold(form, {name: (lambda value=value: value) for name, value in folded.items()}).items():
        torch.testing.assert_close(load().float(), own[name].float(), rtol=2e-7, atol=0)
