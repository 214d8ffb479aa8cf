"""Contradictions between peft's config of a folder and a run's adapter, beside what peft itself does with such a config."""

from __future__ import annotations

import peft
import pytest
import torch
from torch import nn

from mt_core.adapters.base import PeftForm
from mt_train.adapters.contradictions import contradictions

OURS = PeftForm(config={"peft_type": "LORA", "r": 2, "lora_alpha": 2, "init_lora_weights": True}, names={})


@pytest.mark.parametrize("first", ["pissa", "pissa_niter_4", "olora", "OLoRA", "orthogonal", "gaussian"])
def test_first_values_that_change_the_base_are_told_however_peft_lets_them_be_spelled(first: str) -> None:
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(8, 8))
    before = base[0].weight.detach().clone()
    config = peft.LoraConfig(r=2, lora_alpha=2, target_modules=["0"], init_lora_weights=first)  # type: ignore[arg-type]
    model = peft.get_peft_model(base, config)
    changes = not torch.allclose(model.base_model.model[0].base_layer.weight, before)
    found = list(
        contradictions(OURS, {"r": 2, "lora_alpha": 2, "peft_type": "LORA", "init_lora_weights": first}, ["0"])
    )
    assert changes == any(f"init_lora_weights is {first!r} there, which changes the base" in each for each in found)
    assert len(found) == changes
