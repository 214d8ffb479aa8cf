"""What a cache promises to attention: padding is never seen, and rows can be picked."""

from __future__ import annotations

import pytest
import torch

from mt_core.nn import BlockContext, KVCache, SdpaAttention


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cache: KVCache) -> torch.Tensor:
    positions = torch.zeros(q.shape[:2], dtype=torch.long)
    attention = SdpaAttention()
    return attention(q, k, v, BlockContext(positions, positions, attention, cache))


@pytest.mark.parametrize("new", [1, 3, 6], ids=["one token", "a piece", "all"])
def test_a_padded_row_attends_as_if_it_had_no_padding(new: int) -> None:
    dice = torch.Generator().manual_seed(0)
    q = torch.randn(2, new, 4, 8, generator=dice)
    k, v = torch.randn(2, 6, 2, 8, generator=dice), torch.randn(2, 6, 2, 8, generator=dice)
    found = attended(q, k, v, KVCache(torch.tensor([0, 2])))
    assert found.isfinite().all()
    real = min(new, 4)
    torch.testing.assert_close(found[:1], attended(q[:1], k[:1], v[:1], KVCache()))
    torch.testing.assert_close(
        found[1:, -real:], attended(q[1:, -real:], k[1:, 2:], v[1:, 2:], KVCache()), atol=1e-6, rtol=1e-5
    )


def test_every_query_sees_something_padding_too() -> None:
    """Some kernels make a number of a softmax over nothing, and some do not."""
    x = torch.zeros(2, 3, 1, 4)
    positions = torch.zeros(2, 3, dtype=torch.long)
    context = BlockContext(positions, positions, SdpaAttention(), KVCache(torch.tensor([0, 2])))
    context.attention(x, x, x, context)
    padded_row = context.shared["padding_mask"][1, 0]
    assert padded_row.tolist() == [[True, False, False], [False, True, False], [False, False, True]]


def test_rows_of_any_state_can_be_picked_dropped_and_repeated() -> None:
    cache = KVCache(torch.tensor([0, 1, 2]))
    cache.append(0, torch.arange(3.0).view(3, 1, 1, 1), torch.arange(3.0).view(3, 1, 1, 1) + 10)
    cache.put(1, {"state": torch.tensor([5, 6, 7]), "steps": 3, "parts": [torch.tensor([[1], [2], [3]])]})
    cache.select(torch.tensor([2, 0, 0]))
    keys, values = cache.get(0)
    assert (keys.flatten().tolist(), values.flatten().tolist()) == ([2, 0, 0], [12, 10, 10])
    assert cache.get(1)["state"].tolist() == [7, 5, 5]
    assert cache.get(1)["steps"] == 3
    assert cache.get(1)["parts"][0].tolist() == [[3], [1], [1]]
    assert cache.padding_B is not None
    assert cache.padding_B.tolist() == [2, 0, 0]
