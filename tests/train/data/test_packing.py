"""Packed rows with a second limit: the features of their media."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mt_core import Sample
from mt_core.nn import TokenObjective
from mt_core.rows import MediaItem, MediaSpan
from mt_train.config.data import Packing
from mt_train.data.encoding import Rules
from mt_train.data.loader import HeldOut, Loader, Position
from mt_train.data.measures import fill_ratios, measure
from mt_train.data.media.reader import MediaReader
from mt_train.data.packing import WINDOW, MediaLimit, best_fit_of_both, pack
from mt_train.data.samples import EncodedSamples

CAPACITY, MOST = 32, 20
FITS: tuple[Packing, ...] = ("best_fit", "sequential")
sizes = st.lists(st.tuples(st.integers(1, CAPACITY), st.integers(0, 2 * MOST)), max_size=60)


def pack_all(sizes: list[tuple[int, int]], fit: Packing, most: int = MOST) -> list[tuple[int, ...]]:
    media = MediaLimit([features for _, features in sizes], most)
    lengths = [length for length, _ in sizes]
    return pack(range(len(sizes)), lengths, CAPACITY, seed=1, epoch=0, packing=fit, media=media)


@pytest.mark.parametrize("fit", FITS)
@given(sizes=sizes)
@example(sizes=[(32, 0), (1, 21), (1, 0), (1, 20), (1, 1)])
def test_nothing_is_lost_and_no_row_is_above_either_limit(fit: Packing, sizes: list[tuple[int, int]]) -> None:
    rows = pack_all(sizes, fit)
    assert sorted(number for row in rows for number in row) == list(range(len(sizes)))
    for row in rows:
        assert sum(sizes[number][0] for number in row) <= CAPACITY
        assert sum(sizes[number][1] for number in row) <= MOST or len(row) == 1


@pytest.mark.parametrize("fit", FITS)
@given(sizes=sizes)
def test_a_limit_that_nothing_reaches_changes_no_row_without_media_and_leaves_no_room_that_would_do(
    fit: Packing, sizes: list[tuple[int, int]]
) -> None:
    lengths = [length for length, _ in sizes]
    texts = [(length, 0) for length in lengths]
    assert pack_all(texts, fit) == pack(range(len(sizes)), lengths, CAPACITY, seed=1, epoch=0, packing=fit)
    rows = pack_all(sizes, fit)
    if fit == "sequential":
        assert [number for row in rows for number in row] == list(range(len(sizes)))
        first = [(one, two[:1]) for one, two in pairwise(rows)]
    else:  # no two rows could have been one
        first = [(one, two) for place, one in enumerate(rows) for two in rows[place + 1 :] if len(one) == len(two) == 1]
    for one, two in first:
        together = [sizes[number] for number in (*one, *two)]
        assert sum(length for length, _ in together) > CAPACITY - 1 or sum(each for _, each in together) > MOST


def test_full_rows_are_not_looked_at_again_and_again() -> None:
    """A window of pictures that fill their rows, and of texts: seconds at most."""
    random = np.random.default_rng(0)
    lengths = [600 if number % 2 else int(random.integers(8, 200)) for number in range(WINDOW)]
    began = time.process_time()
    rows = best_fit_of_both(lengths, 4096, MediaLimit([576 * (number % 2) for number in range(WINDOW)], 1152))
    assert time.process_time() - began < 3
    assert sorted(number for row in rows for number in row) == list(range(WINDOW))
    assert len(rows) == WINDOW // 4


def samples() -> EncodedSamples:
    """Twenty samples, of which every second one has an item, of 4, 6 or 8 features and half as many tokens."""
    found = EncodedSamples(reader=MediaReader({}))
    for number in range(20):
        tokens, media = 3, []
        if number % 2:
            features = 4 + number % 3 * 2
            media = [MediaSpan(1, features // 2, MediaItem("eye", str(number)), features)]
            tokens += features // 2
        found.add(Sample([number] * tokens, [True] * tokens, str(number), media=media))
    return found


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("most", [8, 13, None])
def test_rows_of_a_run_hold_the_limit_in_training_and_evaluation_with_every_item_once_and_whole(
    fit: Packing, most: int | None
) -> None:
    given: dict[str, Any] = {
        "sequence_len": 24,
        "packing": True,
        "fit": fit,
        "most_features": most,
        "reads_media": False,
    }
    own = samples()
    loader = Loader(own, TokenObjective(), micro_batch_size=1, global_batch_size=4, rank=0, world=1, seed=3, **given)
    held_out = HeldOut(own, TokenObjective(), batch_size=1, rank=0, world=1, **given)
    training = [
        batch
        for window, _ in zip(loader.windows(Position()), range(loader.steps_in(1)), strict=False)
        for batch in window.batches
    ]
    for batches in (training, list(held_out.batches())):
        items, found = [], []
        for batch in batches:
            media = batch.media.get("eye")
            found.append(0 if media is None else sum(media.features))
            if media is not None:
                items += [item.path for item in media.items]
                assert len(media.places_M) == sum(media.tokens)
        assert sorted(items, key=int) == [str(number) for number in range(1, 20, 2)]
        assert (max(found) <= most) if most else (max(found) > 13)


def test_the_share_of_places_that_are_filled_is_that_of_the_rows_with_the_limit() -> None:
    own = samples()
    measure(own, Rules(max_len=24, truncation="drop"))
    given: dict[str, Any] = {"sequence_len": 24, "rows_at_a_time": 2, "seed": 0}
    assert fill_ratios(own, **given, most_features=8)["packing"] < fill_ratios(own, **given)["packing"]
