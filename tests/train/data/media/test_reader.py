"""Media of a batch are read whatever reads them: in threads, ahead, or where they are asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mt_core.errors import DataError
from mt_core.media import Arrays, Measured
from mt_core.nn import Batch, TokenObjective
from mt_core.nn.collation import collate, flatten
from mt_core.rows import MediaItem, MediaPart, MediaSpan, Sample
from mt_train.data.encoding import Rules
from mt_train.data.loader import Loader, Position
from mt_train.data.media.reader import MOST_AHEAD, MediaReader
from mt_train.data.samples import EncodedSamples
from mt_train.data.stream.blocks import Blocks
from mt_train.data.stream.loader import StreamLoader
from mt_train.data.stream.reader import StreamReader


class Bytes:
    """A feature for each byte; what was read is noted."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def measure(self, part: MediaPart) -> Measured:
        return Measured(len(part.content), None, b"")

    def read(self, item: MediaItem) -> Arrays:
        self.seen.append(item.content)
        return {"bytes": np.frombuffer(item.content or Path(item.path).read_bytes(), np.uint8)}

    def dummy(self) -> tuple[Measured, Arrays]:
        return Measured(1, None, b""), {"bytes": np.zeros(1, np.uint8)}


def sample(number: int, *contents: bytes) -> Sample:
    """Ten tokens, one of which is an item of each content."""
    spans = [MediaSpan(1 + place, 1, MediaItem("dna", content=each), len(each)) for place, each in enumerate(contents)]
    return Sample([5] * 10, [True] * 10, f"rows:{number}", media=tuple(spans))


def batch_of(*contents: bytes) -> Batch:
    return collate(flatten([[sample(1, *contents)]]), length=16, pad_id=0)


@pytest.fixture
def processor() -> Bytes:
    return Bytes()


@pytest.mark.parametrize("threads", [0, 1, 4])
@pytest.mark.parametrize("ahead", [False, True])
def test_threads_and_reading_ahead_change_no_byte(processor: Bytes, threads: int, ahead: bool) -> None:
    """One item twice, too."""
    reader, batch = MediaReader({"dna": processor}, threads=threads), batch_of(b"abc", b"d", b"abc", b"ef")
    if ahead:
        reader.read_ahead(batch.media["dna"].items)
    media = reader(batch).media["dna"]
    assert media.inputs is not None
    assert bytes(media.inputs["bytes"].numpy()) == b"abcdabcef"
    assert media.features == (3, 1, 3, 2)


def test_a_batch_without_media_has_a_dummy_that_stands_nowhere(processor: Bytes) -> None:
    media = MediaReader({"dna": processor})(batch_of()).media["dna"]
    assert media.inputs is not None
    assert media.inputs["bytes"].tolist() == [0]
    assert (media.items, media.features, len(media.places_M)) == ((), (1,), 0)


def test_what_was_begun_is_read_once_and_is_bounded(processor: Bytes) -> None:
    reader = MediaReader({"dna": processor}, threads=2)
    items = [MediaItem("dna", content=b"%d" % number) for number in range(3 * MOST_AHEAD)]
    reader.read_ahead(iter(items))
    await_reads(processor, MOST_AHEAD)
    time.sleep(0.05)
    assert len(processor.seen) == MOST_AHEAD
    reader(batch_of(*(item.content for item in items[:3])))
    assert len(processor.seen) == MOST_AHEAD


def test_what_was_begun_for_another_step_is_forgotten_and_read_again_where_it_is_wanted(processor: Bytes) -> None:
    reader = MediaReader({"dna": processor}, threads=1)
    for number, content in enumerate((b"a", b"b"), 1):
        reader.read_ahead([MediaItem("dna", content=content)])
        await_reads(processor, number)
    reader(batch_of(b"a", b"b"))
    assert processor.seen == [b"a", b"b", b"a"]


def test_a_fault_is_raised_by_whoever_asks_for_the_item(processor: Bytes, tmp_path: Path) -> None:
    gone = MediaItem("dna", path=str(tmp_path / "gone"))
    batch = collate(
        flatten([[Sample([1, 2], [True] * 2, "a:1", media=(MediaSpan(0, 1, gone, 1),))]]), length=8, pad_id=0
    )
    for threads in (0, 1):
        reader = MediaReader({"dna": processor}, threads=threads)
        reader.read_ahead([gone])
        with pytest.raises(
            DataError, match=r"gone cannot be read any more: No such file.*Put it back, and resume the run"
        ):
            reader(batch)


def await_reads(processor: Bytes, count: int) -> None:
    ends = time.monotonic() + 30
    while len(processor.seen) < count and time.monotonic() < ends:
        time.sleep(0.005)


def windows(processor: Bytes, **options: Any) -> Iterator[Any]:
    samples = EncodedSamples(reader=MediaReader({"dna": processor}, threads=2))
    for number in range(6):
        samples.add(sample(number, b"row%d" % number))
    usual: dict[str, Any] = {"sequence_len": 16, "packing": False, "micro_batch_size": 1, "global_batch_size": 2}
    usual |= {"rank": 0, "world": 1, "seed": 0, "shuffle": False}
    return Loader(samples, TokenObjective(), **{**usual, **options}).windows(Position())


def test_media_of_the_next_step_are_read_while_a_step_is_computed(processor: Bytes) -> None:
    steps = windows(processor)
    next(steps)
    await_reads(processor, 4)
    assert sorted(processor.seen) == [b"row0", b"row1", b"row2", b"row3"]
    next(steps)
    await_reads(processor, 6)
    assert sorted(processor.seen) == [b"row%d" % number for number in range(6)]
    next(steps)
    time.sleep(0.05)
    assert len(processor.seen) == 6, "the next epoch is not begun"


def test_a_rank_reads_its_own_rows_and_none_without_the_first_layer(processor: Bytes) -> None:
    steps = windows(processor, rank=1, world=2)
    next(steps)
    await_reads(processor, 2)
    assert sorted(processor.seen) == [b"row1", b"row3"]
    processor.seen.clear()
    (batch,) = next(windows(processor, reads_media=False, micro_batch_size=2)).batches
    time.sleep(0.05)
    assert not processor.seen
    assert batch.media["dna"].inputs is None


class Streamed(TokenObjective):
    """Every second row has an item."""

    def encode(self, row: Any) -> Sample:
        return sample(row["number"], *([b"row%d" % row["number"]] if row["number"] % 2 else []))


class Source:
    """Six rows."""

    def rows(self, epoch: int, seed: int) -> Iterator[Any]:
        return ({"id": f"row-{number}", "number": number} for number in range(6))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert not state


def test_a_step_of_a_stream_has_the_media_of_all_of_its_blocks(processor: Bytes) -> None:
    rules = Rules(max_len=16, truncation="drop", reader=MediaReader({"dna": processor}))
    blocks = Blocks(StreamReader(Source(), "rows", seed=0, say=print), Streamed(), rules, size=2, held_out=0)
    options: dict[str, Any] = {"sequence_len": 16, "packing": False, "micro_batch_size": 3, "global_batch_size": 3}
    steps = StreamLoader(blocks, Streamed(), **options, rank=0, world=1, seed=0).windows(Position())
    found = []
    for _ in range(2):
        (batch,) = next(steps).batches
        found += [item.content for item in batch.media["dna"].items]
        assert len(batch.media["dna"].places_M) == len(batch.media["dna"].items)
    assert sorted(found) == [b"row1", b"row3", b"row5"]
