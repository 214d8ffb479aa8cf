"""Promises of a cache: padding is never seen, and what a block keeps is there in the next call."""

from __future__ import annotations

import pytest
import torch

from mt_core.nn import BlockContext, KVCache, SdpaAttention


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cache: KVCache) -> torch.Tensor:
    positions = torch.zeros(q.shape[:2], dtype=torch.long)
    attention = SdpaAttention()
    return attention(q, k, v, BlockContext(positions, positions, attention, cache))


@pytest.mark.parametrize("new", [1, 3, 6], ids=["one token", "a piece", "all"])
def test_a_padded_row_attends_as_if_it_had_no_padding(new: int) -> None:
    dice = torch.Generator().manual_seed(0)
    q = torch.randn(2, new, 4, 8, generator=dice)
    k, v = torch.randn(2, 6, 2, 8, generator=dice), torch.randn(2, 6, 2, 8, generator=dice)
    found = attend(q, k, v, KVCache(torch.tensor([0, 2])))
    assert found.isfinite().all()
    real = min(new, 4)
    torch.testing.assert_close(found[:1], attend(q[:1], k[:1], v[:1], KVCache()))
    torch.testing.assert_close(
        found[1:, -real:], attend(q[1:, -real:], k[1:, 2:], v[1:, 2:], KVCache()), atol=1e-6, rtol=1e-5
    )


def test_every_query_sees_something_padding_too() -> None:
    """Some kernels make a number of a softmax over nothing, and some do not."""
    x = torch.zeros(2, 3, 1, 4)
    positions = torch.zeros(2, 3, dtype=torch.long)
    context = BlockContext(positions, positions, SdpaAttention(), KVCache(torch.tensor([0, 2])))
    context.attention(x, x, x, context)
    padded_row = context.shared["padding_mask"][1, 0]
    assert padded_row.tolist() == [[True, False, False], [False, True, False], [False, False, True]]


def test_keys_and_values_of_all_calls_are_there_and_any_other_state_as_it_was_stored() -> None:
    cache, k = KVCache(), torch.arange(10.0).view(1, 5, 1, 2)
    assert cache.get(0) is None
    for piece in torch.split(k, 2, 1):
        found = cache.append(0, piece, -piece)
    assert torch.equal(found[0], k)
    assert torch.equal(found[1], -k)
    state = {"sum": torch.ones(1, 3)}
    cache.put(1, state)
    assert cache.get(1) is state
