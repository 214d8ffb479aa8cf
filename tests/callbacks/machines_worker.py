"""Runs of several ranks of which one is slow, or has a flipped bit. Run by test_stragglers.py and test_corruption.py.

``machines_worker.py FOLDER CASES`` with JSON: name -> {"stage", "callbacks", "steps", "flip": [rank, step], "stop": [rank, first, last],
"stored", "wrong": [ranks, step, times]}. ``stored``: the flipped bit is one of a quantized weight. ``wrong``: so many passes from that
step on have a hundredfold gradient below a block.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from zero_worker import anew

from mt_core import CallbackContext, MtError
from mt_core.nn import AdaptedLinear
from mt_plugin_callbacks.corruption import CorruptionCheck
from mt_plugin_callbacks.stragglers import Stragglers
from mt_train import train

RANK = int(os.environ["RANK"])


def raw_config(case: dict[str, Any]) -> dict[str, Any]:
    world = int(os.environ["WORLD_SIZE"])
    return {
        "model": {"name": "llama", "n_layers": 2, "dim": 64, "n_heads": 2, "n_kv_heads": 1, **case.get("model", {})},
        "train": {
            "steps": case["steps"],
            "micro_batch_size": 8,
            "global_batch_size": 8 * world,
            "sequence_len": 64,
            "dtype": case.get("dtype", "fp32"),
            **case.get("train", {}),
        },
        "parallel": {"zero_stage": case["stage"], "timeout_seconds": 120, **case.get("parallel", {})},
        "data": {"eval": None, "read_rows": 64},
        "eval": {"samples": 0},
        "log": {"every_steps": case.get("window", 4)},
        "checkpoint": {"every_steps": case.get("save", 500), "keep_last": 99},
        "callbacks": case["callbacks"],
        **case.get("more", {}),
    }


def flip_bit(parameter: Any) -> None:
    """Flip one bit of the middle weight."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[parameter.element_size()]
    flat = parameter.detach().view(-1).view(whole)
    flat[len(flat) // 2] ^= 1 << 3


def disturb(case: dict[str, Any]) -> None:
    """Put the fault of this case into the callbacks' own events, which the next run gets whole again."""
    if "flip" in case:
        rank, step = case["flip"]
        original = CorruptionCheck.on_step_start

        def on_step_start(self: CorruptionCheck, context: CallbackContext) -> None:
            original(self, context)
            if rank != RANK or context.step != step:
                return
            block = context.model.layers()[1].module
            if case.get("stored"):
                flip_bit(next(each for each in block.modules() if isinstance(each, AdaptedLinear)).base.bits)
                return
            if case["stage"] < 3:
                flip_bit(next(block.parameters()))
                return
            module = next(each for each in block.modules() if next(each.parameters(recurse=False), None) is not None)
            handle = module.register_forward_pre_hook(
                lambda module, inputs: (flip_bit(next(module.parameters(recurse=False))), handle.remove())[0],
                prepend=False,
            )
            # Before the check looks, and after the weights were gathered.
            hooks = module._forward_pre_hooks
            last = next(reversed(hooks))
            look = list(hooks)[-2]
            hooks.move_to_end(look)
            assert last in hooks

        CorruptionCheck.on_step_start = on_step_start  # type: ignore[method-assign]
    if "wrong" in case and RANK in case["wrong"][0]:
        _, wrong_step, times = case["wrong"]
        begun = CorruptionCheck.on_step_start

        def start_wrong(self: CorruptionCheck, context: CallbackContext) -> None:
            begun(self, context)
            if context.step != wrong_step:
                return
            left = [times]

            def enlarge(module: Any, inputs: Any, output: Any) -> None:
                left[0] -= 1
                if left[0] >= 0 and output.requires_grad:
                    output.register_hook(lambda gradient: 100 * gradient)

            context.model.layers()[1].module.register_forward_hook(enlarge)

        CorruptionCheck.on_step_start = start_wrong  # type: ignore[method-assign]
    if "stop" in case and case["stop"][0] == RANK:
        _, first, last = case["stop"]
        slow = Stragglers.on_step_start

        def start_slow(self: Stragglers, context: CallbackContext) -> None:
            slow(self, context)
            if context.step == first:
                self.helper = _stop_in_bursts()
            if context.step == last:
                os.kill(self.helper, signal.SIGKILL)
                os.waitpid(self.helper, 0)
                os.kill(os.getpid(), signal.SIGCONT)

        Stragglers.on_step_start = start_slow  # type: ignore[method-assign]


def _stop_in_bursts() -> int:
    """Start a process that stops this one half of the time; it wakes it a last time after 60 seconds at the latest."""
    script = (
        "import os, signal, sys, time\n"
        "for _ in range(1500):\n"
        "    os.kill(int(sys.argv[1]), signal.SIGSTOP); time.sleep(0.02)\n"
        "    os.kill(int(sys.argv[1]), signal.SIGCONT); time.sleep(0.02)\n"
    )
    return subprocess.Popen([sys.executable, "-S", "-c", script, str(os.getpid())]).pid


def main(folder: Path, cases: dict[str, Any]) -> None:
    begin, start = Stragglers.on_step_start, CorruptionCheck.on_step_start
    for name, case in cases.items():
        anew(folder)
        Stragglers.on_step_start, CorruptionCheck.on_step_start = begin, start  # type: ignore[method-assign]
        disturb(case)
        try:
            train(raw_config(case), output=folder / name)
            said = ""
        except MtError as error:
            said = f"{error.exit_code} {error}"
        (folder / f"{name}-{RANK}.txt").write_text(said)
        gc.collect()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
