"""What a compiled model calls as it is, and what a start leaves out for it."""

from __future__ import annotations

import subprocess
import sys

import torch
from torch import Tensor, nn

from mt_core.nn import SdpaAttention, exclude_from_compile
from mt_core.nn.compilation import disable_excluded
from mt_core.nn.meta import on_meta

SEEN: list[bool] = []


@exclude_from_compile
def look(x: Tensor) -> Tensor:
    SEEN.append(torch.compiler.is_compiling())
    return x + 1


class Block(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return self.half(x) * 2

    @exclude_from_compile
    def half(self, x: Tensor) -> Tensor:
        SEEN.append(torch.compiler.is_compiling())
        return look(x) / 2


def test_what_is_excluded_runs_as_it_is_inside_a_compiled_module() -> None:
    disable_excluded()
    block = Block()
    block.compile(backend="eager")
    torch.testing.assert_close(block(torch.ones(3)), torch.full((3,), 2.0))
    assert SEEN == [False, False]
    assert SdpaAttention.__call__._torchdynamo_disable  # type: ignore[attr-defined]


def test_importing_the_blocks_and_building_a_model_on_meta_leaves_the_compiler_out() -> None:
    lines = ["import sys, mt_core.nn", "from torch import nn", "from mt_core.nn.meta import on_meta"]
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
