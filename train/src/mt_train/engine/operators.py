"""DeepSpeed's compiled operators: those that are there, and those that could be compiled when they are first used."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import torch

from mt_train.engine.deepspeed_import import import_deepspeed


def operators() -> dict[str, Any]:
    """The accelerator, and the operators' names by state."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    deepspeed = import_deepspeed(device)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        from deepspeed.ops.op_builder.all_ops import ALL_OPS

        states = {name: _state(builder, deepspeed) for name, builder in ALL_OPS.items()}
    facts = {"accelerator": deepspeed.accelerator.get_accelerator().device_name()}
    for state in sorted(set(states.values())):
        facts[f"operators {state}"] = ", ".join(sorted(name for name, each in states.items() if each == state))
    return facts


def _state(builder: Any, deepspeed: Any) -> str:
    if deepspeed.git_version_info.installed_ops.get(builder.name, False):
        return "installed"
    return "compiled when used" if builder.is_compatible(verbose=False) else "not possible here"
