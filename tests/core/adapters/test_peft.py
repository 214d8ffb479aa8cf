"""Names that peft finds the layers of an adapter by."""

from __future__ import annotations

from typing import Any

import peft
from torch import nn

from mt_core.adapters import LoraLinear, target_keys
from mt_core.adapters.peft import PREFIX

END = ".lora_A.default"


def model(*, blocks: bool) -> nn.Module:
    """Sequences of two layers, which are called 0 and 1 as blocks are, where they stand in some."""
    parts = [nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(2)]
    return nn.ModuleDict({"h": nn.ModuleList(parts)} if blocks else {"first": parts[0], "second": parts[1]})


def adapt(plain: Any) -> list[str]:
    """Put a LoRA on the first layer of each sequence, and return the names of those."""
    found = [name for name, each in plain.named_modules() if isinstance(each, nn.Linear) and name.endswith(".0")]
    for name in found:
        plain.set_submodule(name, LoraLinear(plain.get_submodule(name), rank=2, scale=1.0))
    return found


def test_a_name_that_other_modules_have_too_is_written_whole() -> None:
    for blocks, wanted in ((True, ["h.0.0", "h.1.0"]), (False, ["0"])):
        ours = model(blocks=blocks)
        layers = adapt(ours)
        keys = target_keys(ours)
        assert keys["target_modules"] == wanted
        theirs = peft.get_peft_model(model(blocks=blocks), peft.LoraConfig(r=2, **keys))
        found = {name.removeprefix(PREFIX) for name, _ in theirs.named_modules() if name.endswith(END)}
        assert {name.removesuffix(END) for name in found} == {*layers}
