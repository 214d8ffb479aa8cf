"""Rows of a cache join, leave and grow without losing anything."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mt_core.errors import MtError
from mt_core.nn.cache import AHEAD
from mt_train.generation.row_cache import RowCache


def test_rows_of_any_state_can_be_picked_dropped_and_repeated() -> None:
    cache = RowCache(torch.tensor([0, 1, 2]))
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


def fill_cache(lengths: list[int], dice: torch.Generator, **options: int) -> tuple[RowCache, list[torch.Tensor]]:
    """A cache of these rows, as a model fills it, and what each row holds without padding."""
    longest = max(lengths)
    padding = torch.tensor([longest - length for length in lengths])
    cache = RowCache(padding if any(padding) else None, **options)
    values = torch.randn(len(lengths), longest, 2, 3, generator=dice)
    cache.append(0, values, -values)
    cache.length = longest
    return cache, [row[pad:] for row, pad in zip(values, padding.tolist(), strict=True)]


def rows_of(cache: RowCache) -> list[torch.Tensor]:
    keys, values = cache.get(0)
    assert torch.equal(values, -keys)
    assert keys.shape[1] == cache.length
    padding = [0] * len(keys) if cache.padding_B is None else cache.padding_B.tolist()
    return [row[pad:] for row, pad in zip(keys, padding, strict=True)]


def is_same(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    return len(found) == len(wanted) and all(map(torch.equal, found, wanted))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), places=st.sampled_from([None, 400]))
def test_rows_join_leave_and_grow_in_any_order_and_keep_what_they_hold(seed: int, places: int | None) -> None:
    """400 places are little more than what is asked for at times: then less is allocated ahead, and nothing is lost."""
    dice, chance = torch.Generator().manual_seed(seed), random.Random(seed)
    cache, rows = fill_cache([chance.randint(1, 9) for _ in range(chance.randint(1, 4))], dice, places=places)
    for _ in range(25):
        deed = chance.choice(["grow", "grow", "join", "select"])
        if places is not None and (len(rows) + 3) * max(20, cache.length + 3) > places:
            deed = "select"
        if deed == "join" and len(rows) < 8:
            other, more = fill_cache([chance.randint(1, 20) for _ in range(chance.randint(1, 3))], dice)
            cache.join(other)
            rows += more
        elif deed == "select":
            kept = chance.sample(range(len(rows)), chance.randint(1, len(rows)))
            cache.select(torch.tensor(kept))
            cache.trim()
            rows = [rows[row] for row in kept]
            assert cache.length == max(map(len, rows))
        else:
            new = torch.randn(len(rows), chance.randint(1, 3), 2, 3, generator=dice)
            cache.append(0, new, -new)
            cache.length += new.shape[1]
            rows = [torch.cat(pair) for pair in zip(rows, new, strict=True)]
        assert is_same(rows_of(cache), rows), deed
        assert places is None or cache.allocated_places <= places


def test_tokens_are_written_into_room_that_is_there_already() -> None:
    cache, _ = fill_cache([5, 5], torch.Generator())
    places = set()
    for _ in range(AHEAD):
        keys, _ = cache.append(0, torch.zeros(2, 1, 2, 3), torch.zeros(2, 1, 2, 3))
        places.add(keys.data_ptr())
        cache.length += 1
    assert len(places) <= 2, "all tokens are copied once in so many, not for each"
    assert cache.allocated_places <= 2 * (cache.length + AHEAD)


def test_the_keys_of_a_head_stand_one_behind_the_other() -> None:
    """Attention reads them in that order; a row that was spread, joined or moved has them so too."""
    cache, _ = fill_cache([5], torch.Generator())
    cache.spread(torch.tensor([0, 2]))
    cache.join(fill_cache([7], torch.Generator())[0])
    for kept in cache.get(0):
        assert kept.stride(1) == kept.shape[3]
        assert kept.stride(2) > kept.shape[1] * kept.shape[3] > kept.stride(1)


def test_a_limit_gives_back_what_is_ahead() -> None:
    cache, rows = fill_cache([5, 3], torch.Generator())
    assert cache.allocated_places > 12
    cache.limit(12)
    assert cache.allocated_places == 10
    assert is_same(rows_of(cache), rows)
    cache.append(0, torch.zeros(2, 1, 2, 3), torch.zeros(2, 1, 2, 3))
    assert cache.allocated_places == 12


@pytest.mark.parametrize("padding", [[0, 0, 0], [2, 0, 5]])
def test_one_row_becomes_the_beginning_of_several(padding: list[int]) -> None:
    """A row with padding in front is as long as the others, so it lacks as many of the last tokens."""
    cache, (row,) = fill_cache([6], torch.Generator())
    cache.spread(torch.tensor(padding))
    assert is_same(rows_of(cache), [row[: 6 - pad] for pad in padding])


def test_a_row_that_broke_leaves_nothing_behind_in_padding() -> None:
    """Zero times a number that is none would be none."""
    cache, _ = fill_cache([6], torch.Generator())
    broken, short = (torch.full((1, length, 2, 3), torch.nan) for length in (8, 2))
    other = RowCache()
    other.append(0, broken, broken)
    other.length = 8
    cache.join(other)
    cache.select(torch.tensor([0]))
    cache.trim()
    again = RowCache()
    again.append(0, short.zero_(), short)
    again.length = 2
    cache.join(again)
    longer = RowCache()
    longer.append(0, torch.ones(1, 8, 2, 3), torch.ones(1, 8, 2, 3))
    longer.length = 8
    cache.join(longer)
    assert all(tensor.isfinite().all() for tensor in cache.get(0))


def test_states_of_another_kind_join_row_below_row() -> None:
    def made(rows: int, tokens: int) -> RowCache:
        cache = RowCache()
        cache.put(3, {"sum": torch.full((rows, 4), float(tokens)), "seen": torch.ones(rows, tokens, 2), "name": "x"})
        cache.length = tokens
        return cache

    cache = made(2, 3)
    cache.join(made(1, 5))
    state = cache.get(3)
    assert state["sum"][:, 0].tolist() == [3, 3, 5]
    assert state["seen"][:, :, 0].tolist() == [[0, 0, 1, 1, 1], [0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]
    assert cache.padding_B is not None
    assert (cache.padding_B.tolist(), cache.length, state["name"]) == ([2, 2, 0], 5, "x")
    cache.select(torch.tensor([0, 1]))
    cache.trim()
    assert cache.length == 5, "nobody knows which of its dimensions are tokens"
    other = made(1, 5)
    other.get(3)["name"] = "y"
    with pytest.raises(MtError, match=r"'x' in the cache for some rows and 'y' for others; .* ragged_batches = False"):
        cache.join(other)


def test_a_fork_has_its_rows_and_leaves_the_other_as_it_is() -> None:
    """Keys and values, padding, and a state of another kind: what one of both is told, the other does not hear of."""
    k = torch.arange(12.0).view(2, 3, 1, 2)
    cache = RowCache(torch.tensor([0, 1]))
    cache.append(0, k, -k)
    cache.put(1, {"seen": torch.tensor([[5.0], [7.0]])})
    cache.length = 3
    forked = cache.fork(torch.tensor([1, 0, 1]))
    assert forked.length == 3
    assert forked.padding_B is not None
    assert forked.padding_B.tolist() == [1, 0, 1]
    torch.testing.assert_close(forked.get(0)[0], k[[1, 0, 1]])
    torch.testing.assert_close(forked.get(1)["seen"], torch.tensor([[7.0], [5.0], [7.0]]))
    forked.append(0, torch.full((3, 2, 1, 2), 99.0), torch.full((3, 2, 1, 2), 99.0))
    cache.append(0, torch.full((2, 1, 1, 2), 50.0), torch.full((2, 1, 1, 2), 50.0))
    torch.testing.assert_close(cache.get(0)[0], torch.cat([k, torch.full((2, 1, 1, 2), 50.0)], 1))
    torch.testing.assert_close(forked.get(0)[1][:, :3], -k[[1, 0, 1]])
    assert forked.get(0)[0][:, 3:].unique().tolist() == [99.0]
