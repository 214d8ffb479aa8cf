"""Products in blocks have the bits of the plain ones, and are taken only where that was measured."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mt_train.generation import products
from mt_train.generation.products import (
    BLOCK,
    LEAST_WEIGHTS,
    MOST_ROWS,
    is_product_faster_in_blocks,
    multiply_in_blocks,
)

needs_avx2 = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX2", reason="the order of sums was measured with AVX2"
)


@needs_avx2
@pytest.mark.parametrize("width", [96, 512, 1000])
@pytest.mark.parametrize("rows", [2, 3, 8, 17, MOST_ROWS])
def test_blocks_have_the_bits_of_the_plain_product(rows: int, width: int) -> None:
    dice = torch.Generator().manual_seed(rows)
    hidden, weight = torch.randn(rows, width, generator=dice), torch.randn(8 * BLOCK, width, generator=dice)
    assert torch.equal(multiply_in_blocks(hidden, weight), nn.functional.linear(hidden, weight))


def test_blocks_are_the_product_in_float64() -> None:
    """To the rounding, which is none in float64."""
    hidden, weight = torch.randn(5, 33, dtype=torch.float64), torch.randn(3 * BLOCK, 33, dtype=torch.float64)
    torch.testing.assert_close(multiply_in_blocks(hidden, weight), hidden @ weight.T, atol=1e-12, rtol=1e-12)


def test_only_what_was_measured_is_multiplied_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_has_avx2_at_most", lambda: True)
    width = LEAST_WEIGHTS // (32 * BLOCK)
    head, hidden = nn.Linear(width, 32 * BLOCK, bias=False), torch.zeros(8, width)
    assert is_product_faster_in_blocks(head, hidden)
    assert not is_product_faster_in_blocks(head, hidden[:1])
    assert not is_product_faster_in_blocks(head, torch.zeros(MOST_ROWS + 1, width))
    assert not is_product_faster_in_blocks(head, hidden.bfloat16())
    assert not is_product_faster_in_blocks(nn.Linear(width, 32 * BLOCK, bias=False).bfloat16(), hidden.bfloat16())
    assert not is_product_faster_in_blocks(nn.Linear(width, 32 * BLOCK), hidden), "a bias"
    assert not is_product_faster_in_blocks(nn.Linear(width, 32 * BLOCK + 1, bias=False), hidden), "no whole blocks"
    assert not is_product_faster_in_blocks(nn.Linear(width, 31 * BLOCK, bias=False), hidden), "a small weight"
    assert not is_product_faster_in_blocks(nn.Sequential(head), hidden), "a head that may do more"
    head.register_forward_pre_hook(lambda *_: None)
    assert not is_product_faster_in_blocks(head, hidden), "a hook that has to run"
    monkeypatch.setattr(products, "_has_avx2_at_most", lambda: False)
    assert not is_product_faster_in_blocks(nn.Linear(width, 32 * BLOCK, bias=False), hidden), "another processor"
