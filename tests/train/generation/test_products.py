"""Products in blocks have the bits of the plain ones, and are taken only where that was measured."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mt_train.generation.products import (
    BLOCK,
    LEAST_WEIGHTS,
    ROWS,
    is_product_faster_in_blocks,
    multiply_in_blocks,
)

MEASURED = ROWS.get(torch.backends.cpu.get_cpu_capability(), ())
needs_measured_processor = pytest.mark.skipif(
    not MEASURED, reason="the order of sums was measured with AVX2 and AVX-512"
)


@needs_measured_processor
@pytest.mark.parametrize("width", [96, 512, 1000, 2048])
def test_blocks_have_the_bits_of_the_plain_product(width: int) -> None:
    dice = torch.Generator().manual_seed(width)
    weight = torch.randn(8 * BLOCK, width, generator=dice)
    for rows in sorted({2, 3, 4, 8, 11, 15, 17, 64}.intersection(MEASURED)):
        hidden = torch.randn(rows, width, generator=dice)
        assert torch.equal(multiply_in_blocks(hidden, weight), nn.functional.linear(hidden, weight)), rows


def test_blocks_are_the_product_in_float64() -> None:
    """To the rounding, which is none in float64."""
    hidden, weight = torch.randn(5, 33, dtype=torch.float64), torch.randn(3 * BLOCK, 33, dtype=torch.float64)
    torch.testing.assert_close(multiply_in_blocks(hidden, weight), hidden @ weight.T, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(("instructions", "rows"), ROWS.items())
def test_only_what_was_measured_is_multiplied_in_blocks(
    instructions: str, rows: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: instructions)
    width = LEAST_WEIGHTS // (32 * BLOCK)
    head, hidden = nn.Linear(width, 32 * BLOCK, bias=False), torch.zeros(8, width)
    taken = [count for count in range(1, 80) if is_product_faster_in_blocks(head, torch.zeros(count, width))]
    assert taken == list(rows)
    assert not is_product_faster_in_blocks(head, hidden.bfloat16())
    assert not is_product_faster_in_blocks(nn.Linear(width, 32 * BLOCK, bias=False).bfloat16(), hidden.bfloat16())
    assert not is_product_faster_in_blocks(nn.Linear(width, 32 * BLOCK), hidden), "a bias"
    assert not is_product_faster_in_blocks(nn.Linear(width, 32 * BLOCK + 1, bias=False), hidden), "no whole blocks"
    assert not is_product_faster_in_blocks(nn.Linear(width, 31 * BLOCK, bias=False), hidden), "a small weight"
    assert not is_product_faster_in_blocks(nn.Sequential(head), hidden), "a head that may do more"
    head.register_forward_pre_hook(lambda *_: None)
    assert not is_product_faster_in_blocks(head, hidden), "a hook that has to run"
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    assert not is_product_faster_in_blocks(nn.Linear(width, 32 * BLOCK, bias=False), hidden), "another processor"
