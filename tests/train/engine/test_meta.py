"""Models without values cost neither memory nor the compiler's import."""

from __future__ import annotations

import subprocess
import sys

import torch
from torch import nn

from mt_train.engine.meta import on_meta


def test_importing_the_blocks_and_building_a_model_on_meta_leaves_the_compiler_out() -> None:
    lines = ["import sys, mt_core.nn", "from torch import nn", "from mt_train.engine.meta import on_meta"]
    lines += [
        "with on_meta(): nn.Sequential(nn.Embedding(9, 3), nn.Linear(3, 9))",
        "print('torch._dynamo' in sys.modules)",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_tensors_that_are_not_on_meta_are_drawn_inside_too() -> None:
    with on_meta():
        assert nn.Embedding(9, 3).weight.is_meta
        real = torch.zeros(1000, device="cpu")
        nn.init.normal_(real)
    assert 0.8 < real.std() < 1.2
