"""Streams in a mix: shares, order and ends; the same for any number of ranks, and resumed behind any row."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
from dataset_files import open_dataset

from mt_core import DataError, Sample, Stream
from mt_core.nn import TokenObjective
from mt_plugin_datasets.mixing import ConcatConfig, build_concat
from mt_plugin_datasets.stream_mix import InOrder, MixedSource, StreamMix
from mt_train.data.encoding import Rules
from mt_train.data.loader import Position, Window
from mt_train.data.stream.blocks import Blocks
from mt_train.data.stream.loader import StreamLoader
from mt_train.data.stream.reader import StreamReader


def source(folder: Path, name: str, rows: int, kind: str = "stream", **more: Any) -> dict[str, Any]:
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps({"text": f"{name}{n}"}) + "\n" for n in range(rows)))
    return {"name": kind, "path": str(file), **more}


class EndlessStream:
    """Rows without end. Its state is read before it gives a row, and is then that of the load."""

    def __init__(self) -> None:
        self.given, self.start = 0, 0

    def rows(self, epoch: int, seed: int) -> Iterator[Any]:
        start, self.start = self.start, 0
        for number in count(start):
            self.given = number + 1
            yield {"id": f"endless {number}", "text": f"e{number}"}

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state["given"]


def mix(*parts: Any, weights: Sequence[float] | None = None, **more: Any) -> StreamMix:
    return StreamMix([MixedSource(part, {}, f"part {n}") for n, part in enumerate(parts)], weights, **more)


def texts(rows: Any, most: int | None = None) -> list[str]:
    return [str(row) if isinstance(row, DataError) else row["text"] for row in islice(rows, most)]


def resumed_anywhere(make: Callable[[], Any], epoch: int, most: int) -> list[str]:
    """So many rows of an epoch, after it was seen that a fresh source goes on behind each of them, again and again."""
    whole = texts(make().rows(epoch, 3), most)
    for read in range(1, len(whole) + (len(whole) < most)):
        first, again, third = make(), make(), make()
        assert texts(first.rows(epoch, 3), read) == whole[:read]
        state = json.loads(json.dumps(first.state_dict()))
        again.load_state_dict(state)
        assert again.state_dict() == state, "before a row is read"
        assert texts(again.rows(epoch, 3), min(2, most - read)) == whole[read : read + 2]
        third.load_state_dict(json.loads(json.dumps(again.state_dict())))
        assert texts(third.rows(epoch, 3), max(0, most - read - 2)) == whole[read + 2 :]
        assert texts(again.rows(epoch, 3), most) == whole, "the next time from the begin"
    return whole


def test_in_sequence_a_stream_comes_behind_a_file_and_has_no_end(tmp_path: Path) -> None:
    def make() -> StreamMix:
        return mix(open_dataset("jsonl", path=source(tmp_path, "a", 3)["path"]), EndlessStream())

    assert isinstance(make(), Stream)
    assert resumed_anywhere(make, 0, 9) == ["a0", "a1", "a2", "e0", "e1", "e2", "e3", "e4", "e5"]


def test_in_turns_each_has_its_share_and_its_order_and_goes_on_behind_any_row(tmp_path: Path) -> None:
    def make() -> StreamMix:
        found = open_dataset(
            "concat", mix="rows", sources=[source(tmp_path, "a", 7, weight=3), source(tmp_path, "b", 2, "jsonl")]
        )
        assert isinstance(found, StreamMix)
        return found

    rows = resumed_anywhere(make, 1, 99)
    assert 9 < len(rows) < 99, "it ends, and what is resumed behind its last row does so too"
    shares = Counter(text[0] for text in texts(mix(EndlessStream(), make(), weights=[3, 1]).rows(0, 0), 4000))
    assert shares["e"] / 4000 == pytest.approx(0.75, abs=0.03)
    assert [text for text in rows if text[0] == "a"] == [f"a{n % 7}" for n in range(sum(t[0] == "a" for t in rows))]
    orders = [[t[0] for t in texts(make().rows(epoch, seed))] for epoch, seed in ((0, 0), (0, 1), (1, 0), (0, 0))]
    assert orders[0] == orders[3]
    assert orders[0] != orders[1]
    assert orders[0] != orders[2]


def test_a_source_may_be_read_up_to_a_number_of_rows(tmp_path: Path) -> None:
    parts = [source(tmp_path, "a", 7, read_rows=3, weight=1), source(tmp_path, "b", 9, "jsonl", read_rows=2, weight=1)]

    def make() -> StreamMix:
        return open_dataset("concat", mix="rows", sources=parts)

    rows = resumed_anywhere(make, 0, 99)
    for letter, most in (("a", 3), ("b", 2)):
        own = [text for text in rows if text[0] == letter]
        assert own == [f"{letter}{n % most}" for n in range(len(own))]
        assert len(own) >= most
    in_order = [{key: value for key, value in part.items() if key != "weight"} for part in parts]
    assert texts(open_dataset("concat", sources=in_order).rows(0, 0)) == ["a0", "a1", "a2", "b0", "b1"]


@pytest.mark.parametrize("rows", [1, 3])
def test_a_short_source_that_is_repeated_has_the_share_of_its_weight(tmp_path: Path, rows: int) -> None:
    """Shares are those of ``interleave_datasets`` (datasets), which begins anew at once; 0.035 are three deviations of 2,000 draws."""

    def make() -> StreamMix:
        return mix(open_dataset("stream", path=source(tmp_path, "a", rows)["path"]), EndlessStream(), weights=[1, 1])

    shares = Counter(text[0] for text in texts(make().rows(0, 0), 2000))
    assert shares["a"] / 2000 == pytest.approx(0.5, abs=0.035)
    resumed_anywhere(make, 0, 20)


def test_turns_beyond_those_that_are_drawn_together_are_the_same_ones() -> None:
    whole = texts(mix(EndlessStream(), EndlessStream(), weights=[1, 2]).rows(0, 5), 2100)
    first, again = (mix(EndlessStream(), EndlessStream(), weights=[1, 2]) for _ in range(2))
    texts(first.rows(0, 5), 1024)
    again.load_state_dict(first.state_dict())
    assert texts(again.rows(0, 5), 1076) == whole[1024:]


@pytest.mark.parametrize("until", ["all", "first"])
def test_an_epoch_ends_when_all_were_read_or_the_first_was(tmp_path: Path, until: str) -> None:
    parts = [source(tmp_path, "a", 30), source(tmp_path, "b", 4, "jsonl")]
    found = Counter(texts(open_dataset("concat", sources=parts, mix="rows", until=until).rows(0, 0)))
    assert all(found[f"b{n}"] for n in range(4))
    assert all(found[f"a{n}"] for n in range(30)) == (until == "all")
    assert (max(found.values()) > 1) == (until == "all")


def test_columns_are_those_of_each_source_and_a_row_without_one_is_a_fault_among_others(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text('{"q": "1"}\n{"w": "2"}\n{"q": "3"}\n')
    parts = [{"name": "stream", "path": str(file), "columns": {"text": "q"}}, source(tmp_path, "a", 1)]
    first, fault, *others = open_dataset("concat", sources=parts).rows(0, 0)
    assert isinstance(fault, DataError)
    assert "q.jsonl:2: data.columns maps 'text' to 'q'" in str(fault)
    assert [row["text"] for row in (first, *others)] == ["1", "3", "a0"]
    (tmp_path / "bad.jsonl").write_text('{"text": "1"}\n{\n{"text": "3"}\n')
    rows = mix(open_dataset("jsonl", path=tmp_path / "bad.jsonl"), EndlessStream()).rows(0, 0)
    assert [isinstance(row, DataError) for row in islice(rows, 4)] == [False, True, False, False]


def test_rows_to_evaluate_on_come_once(tmp_path: Path) -> None:
    own = source(tmp_path, "b", 3)["path"]
    parts = [source(tmp_path, "a", 2, eval_path=own, weight=5), source(tmp_path, "c", 1, weight=1)]
    assert texts(open_dataset("concat", "eval", sources=parts, mix="rows").rows(0, 0)) == ["b0", "b1", "b2"]


@pytest.mark.parametrize("kind", ["tokens", "temperature"])
def test_shares_that_need_all_rows_are_refused(kind: Any) -> None:
    config = ConcatConfig(sources=({"name": "x"},), mix=kind)
    with pytest.raises(DataError, match=rf"dataset\.sources\.0 \(x\) is a stream, and dataset\.mix {kind} asks for"):
        build_concat(config, split="train", parts=[EndlessStream()])


def test_a_source_without_rows_is_refused_when_its_turn_comes(tmp_path: Path) -> None:
    for weights in (None, [1.0, 1.0]):
        with pytest.raises(DataError, match=r"part 0 has no rows\. Take it out of the mix"):
            texts(
                mix(
                    open_dataset("stream", path=source(tmp_path, "a", 0)["path"]), EndlessStream(), weights=weights
                ).rows(0, 0),
                9,
            )


def test_where_a_source_has_no_state_the_mix_has_none() -> None:
    silent = EndlessStream()
    silent.state_dict = dict  # type: ignore[method-assign]
    mixed = mix(silent, EndlessStream())
    assert mixed.state_dict() != {}, "nothing was read of it"
    assert texts(mixed.rows(0, 0), 2) == ["e0", "e1"]
    assert mixed.state_dict() == {}


def test_a_state_of_other_sources_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"the run mixed 2 sources, and dataset\.sources has 1 now"):
        mix(EndlessStream()).load_state_dict(mix(EndlessStream(), EndlessStream()).state_dict())
    longer, shorter = (InOrder(open_dataset("jsonl", path=source(tmp_path, f"a{n}", n)["path"])) for n in (5, 3))
    texts(longer.rows(0, 0))
    with pytest.raises(DataError, match="had read 5 rows of a dataset that has 3 now"):
        shorter.load_state_dict(longer.state_dict())


class Letters(TokenObjective):
    def encode(self, row: Any) -> Sample:
        ids = list(row["text"].encode())
        return Sample(ids, [True] * len(ids), row["id"])


def windows(make: Callable[[], Any], position: Position, most: int, **ranks: int) -> list[Window]:
    reader = StreamReader(make(), "the mix", seed=5, say=print)
    blocks = Blocks(reader, Letters(), Rules(max_len=16, truncation="split"), size=8, held_out=2)
    usual: dict[str, Any] = {"micro_batch_size": 2, "global_batch_size": 4, "rank": 0, "world": 1}
    loader = StreamLoader(blocks, Letters(), sequence_len=16, packing=True, seed=5, **{**usual, **ranks})
    return list(islice(loader.windows(position), most))


def test_a_run_on_a_mix_is_the_same_on_any_number_of_ranks_and_resumed_to_the_bit(tmp_path: Path) -> None:
    def make() -> Any:
        parts = [source(tmp_path, "a", 40), source(tmp_path, "b", 9, "jsonl", weight=2)]
        return open_dataset("concat", sources=parts, mix="rows")

    def content(window: Window) -> tuple[Any, ...]:
        return window.row_ids, window.after, [batch.input_ids.tolist() for batch in window.batches]

    whole = windows(make, Position(), 30)
    assert whole[-1].after.epoch, "more than an epoch"
    for step in (1, 4, 11, 20):
        stored = json.loads(json.dumps(asdict(whole[step - 1].after)))
        rest = windows(make, Position(**stored), 3)
        assert [content(each) for each in rest] == [content(each) for each in whole[step : step + 3]]
    ranks = [windows(make, Position(), 12, rank=rank, world=2) for rank in range(2)]
    for alone, *parts in zip(whole, *ranks, strict=False):
        assert all(part.row_ids == alone.row_ids for part in parts)
        rows = sorted(row for part in parts for batch in part.batches for row in batch.input_ids.tolist())
        assert [row for row in rows if any(row)] == sorted(
            row for batch in alone.batches for row in batch.input_ids.tolist() if any(row)
        )
