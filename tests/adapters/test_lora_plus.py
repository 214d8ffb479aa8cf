"""LoRA+: which parameters have which rate, beside peft's own groups."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.optimizers import create_loraplus_optimizer
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

from tiny_model import inject

from mt_core import UsageError
from mt_plugin_adapters.variants.lora_plus import COMPONENT
from mt_plugin_adapters.variants.lora_plus.config import LoraPlusConfig

SMALL: dict = {"rank": 4, "alpha": 8.0, "ratio": 4.0}


def test_b_has_the_multiplied_rate_and_a_is_left_to_the_optimizer() -> None:
    model, adapter = inject(COMPONENT.build(LoraPlusConfig(**SMALL)))
    (group,) = adapter.parameter_groups(model, 0.01)
    ours = {name for name, each in model.named_parameters() if any(each is own for own in group["params"])}
    assert ours == {name for name in adapter.trainable_parameters(model) if name.endswith("lora_B")}
    assert len(ours) == 14
    theirs = get_peft_model(nn.Sequential(nn.Linear(8, 8)), LoraConfig(r=4, target_modules=["0"]))
    optimizer = create_loraplus_optimizer(theirs, torch.optim.AdamW, lr=0.01, loraplus_lr_ratio=4.0)
    rates = {id(each): group["lr"] for group in optimizer.param_groups for each in group["params"]}
    b = next(each for name, each in theirs.named_parameters() if "lora_B" in name)
    assert group["lr"] == rates[id(b)] == 0.04


def test_what_is_not_trained_is_in_no_group() -> None:
    model, adapter = inject(COMPONENT.build(LoraPlusConfig(**SMALL)))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.endswith("lora_B"))
    assert adapter.parameter_groups(model, 0.01) == []


def test_an_optimizer_without_a_rate_is_refused() -> None:
    model, adapter = inject(COMPONENT.build(LoraPlusConfig(**SMALL)))
    with pytest.raises(UsageError, match=r"multiplies optimizer\.lr"):
        adapter.parameter_groups(model, 0.0)
