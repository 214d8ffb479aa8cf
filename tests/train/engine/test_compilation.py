"""What a compiled model calls as it is, and what a start leaves out for it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mt_core.nn import SdpaAttention, exclude_from_compile
from mt_train.engine.compilation import disable_excluded

SEEN: list[bool] = []


@exclude_from_compile
def look(x: Tensor) -> Tensor:
    SEEN.append(torch.compiler.is_compiling())
    return x + 1


class Block(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return self.halve(x) * 2

    @exclude_from_compile
    def halve(self, x: Tensor) -> Tensor:
        SEEN.append(torch.compiler.is_compiling())
        return look(x) / 2


def test_what_is_excluded_runs_as_it_is_inside_a_compiled_module() -> None:
    disable_excluded()
    block = Block()
    block.compile(backend="eager")
    torch.testing.assert_close(block(torch.ones(3)), torch.full((3,), 2.0))
    assert SEEN == [False, False]
    assert SdpaAttention.__call__._torchdynamo_disable  # type: ignore[attr-defined]
