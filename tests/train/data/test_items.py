"""Samples of several documents: kept whole through columns, chunks and the cache, and cut by one rule."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mt_core import Rejected, Sample
from mt_core.errors import ComponentError, DataError
from mt_core.nn import TokenObjective
from mt_train.data.cache import TokenCache
from mt_train.data.cache_folder import DamagedCacheError, open_samples
from mt_train.data.cache_index import META, seal
from mt_train.data.encoding import Rules, encode
from mt_train.data.items import fit_item
from mt_train.data.lengths import NOTHING_LEFT, Lengths
from mt_train.data.loader import Loader, Position
from mt_train.data.row_statistics import RowStatistics
from mt_train.data.samples import EncodedSamples

BOS, STOP = 1, 2


def pair(prompt: int, chosen: int, rejected: int, row_id: str = "row-0") -> Sample:
    """A prompt of so many tokens, twice, with two answers; ids say where a token comes from."""
    sides = [
        [BOS, *range(100, 100 + prompt - 1), *range(start, start + answer - 1), STOP]
        for start, answer in ((200, chosen), (300, rejected))
    ]
    trained = [[False] * prompt + [True] * (len(side) - prompt) for side in sides]
    return Sample(
        [*sides[0], *sides[1]],
        [*trained[0], *trained[1]],
        row_id,
        None,
        [len(side) for side in sides],
        {"margin": [1.5, -0.5]},
        {"place": [float(place) for place in range(sum(map(len, sides)))]},
    )


def limits(truncation: str, **given: Any) -> Lengths:
    return Lengths(**{"max_len": 1000, "truncation": truncation, "bos_id": BOS, "stop_ids": frozenset({STOP})} | given)


def sides(sample: Sample) -> tuple[list[int], list[int]]:
    cut = sample.documents[0]
    return list(sample.ids[:cut]), list(sample.ids[cut:])


class Pairs(TokenObjective):
    """Makes a pair of a row that says how long its parts are."""

    def encode(self, row: Any) -> Sample | Rejected:
        return pair(row["prompt"], row["chosen"], row["rejected"], row["id"])


class Rows:
    """A dataset of such rows."""

    def __init__(self, lengths: list[tuple[int, int, int]]) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def row(self, index: int) -> dict[str, Any]:
        return {"id": f"row-{index}", **dict(zip(("prompt", "chosen", "rejected"), self.lengths[index], strict=True))}


def is_same(one: Sample, other: Sample) -> bool:
    """Equal numbers, whatever holds them."""

    def plain(sample: Sample) -> dict[str, Any]:
        values = {
            name: {key: list(map(float, each)) for key, each in getattr(sample, name).items()}
            for name in ("document_values", "token_values")
        }
        lists = {name: [*map(int, getattr(sample, name))] for name in ("ids", "trained", "documents")}
        return {**lists, **values, "row_id": sample.row_id}

    return plain(one) == plain(other)


lengths_of_pairs = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6)), max_size=9)


@given(lengths_of_pairs)
def test_what_goes_into_columns_comes_out(lengths: list[tuple[int, int, int]]) -> None:
    samples, given = EncodedSamples(), [pair(*each, f"row-{number}") for number, each in enumerate(lengths)]
    for each in given:
        samples.add(each)
    assert all(is_same(*both) for both in zip(samples, given, strict=True))
    first_tokens = sum(sample.trained[0] + sample.trained[sample.documents[0]] for sample in given)
    assert samples.report.tokens_trained == sum(sum(sample.trained) for sample in given) - first_tokens


@contextmanager
def silent_progress() -> Iterator[Callable[[int, int], None]]:
    yield lambda done, of: None


def cache(folder: Path, dataset: Rows, monkeypatch: pytest.MonkeyPatch, chunk: int = 2) -> EncodedSamples:
    monkeypatch.setattr("mt_train.data.chunks.CHUNK_ROWS", chunk)
    cache = TokenCache(folder, 1, lambda text: None, silent_progress)
    rules = Rules(max_len=14, truncation="drop", bos_id=BOS)
    return cache.samples("key", lambda: (dataset, range(len(dataset))), Pairs(), rules)


@pytest.mark.parametrize("dropped_first", [True, False])
def test_the_cache_gives_what_memory_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dropped_first: bool
) -> None:
    """Also where the first chunk has no sample, so that nobody knows yet what columns there are."""
    rows = Rows([(9, 9, 9), (9, 9, 9)] * dropped_first + [(1, 2, 3), (2, 1, 4), (3, 3, 1), (9, 9, 9), (1, 1, 1)])
    rules = Rules(max_len=14, truncation="drop", bos_id=BOS)
    plain = encode(rows, range(len(rows)), Pairs(), rules)  # type: ignore[arg-type]
    for _ in range(2):  # made, and found
        found = cache(tmp_path, rows, monkeypatch)
        assert len(found) == 4
        assert all(is_same(*both) for both in zip(found, plain, strict=True))
        assert found.fingerprint() == plain.fingerprint()


def test_a_changed_value_is_another_set_of_samples() -> None:
    one, other = EncodedSamples(), EncodedSamples()
    one.add(pair(2, 3, 4))
    other.add(replace(pair(2, 3, 4), document_values={"margin": [1.5, -0.25]}))
    assert one.fingerprint() != other.fingerprint()
    other = EncodedSamples()
    other.add(replace(pair(2, 3, 4), documents=[6, 5]))
    assert one.fingerprint() != other.fingerprint()


@pytest.mark.parametrize("place", ["chunks", "columns"])
def test_a_cache_that_names_a_path_is_damaged(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of chunks are names of files."""
    cache(tmp_path, Rows([(1, 2, 3)]), monkeypatch)
    meta = tmp_path / "key" / META
    told = json.loads(meta.read_bytes().split(b"\n")[0])
    chunk = told["chunks"]["chunk-000000"]
    if place == "chunks":
        told["chunks"]["../key/chunk-000000"] = chunk
    else:
        chunk[2]["token.../../../etc"] = 1
    meta.write_bytes(seal(json.dumps(told)))
    with pytest.raises(DamagedCacheError):
        open_samples(tmp_path / "key")


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (replace(pair(2, 3, 4), documents=()), r"a sample with .*, after others with"),
        (replace(pair(2, 3, 4), document_values={}), r"a sample with .*, after others with"),
        (replace(pair(2, 3, 4), documents=[5, 5]), r"documents of \[5, 5\] tokens for 11 ids"),
        (replace(pair(2, 3, 4), document_values={"margin": [1.0]}), r"1 values that are not one for each document"),
    ],
)
def test_samples_that_do_not_fit_together_are_refused(second: Sample, said: str) -> None:
    samples = EncodedSamples()
    samples.add(pair(2, 3, 4))
    with pytest.raises(ComponentError, match=said):
        samples.add(second)


def test_a_chunk_without_the_documents_of_another_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process sees its own rows only."""

    class Wavering(Pairs):
        def encode(self, row: Any) -> Sample | Rejected:
            made = super().encode(row)
            assert isinstance(made, Sample)
            return made if row["chosen"] < 3 else replace(made, document_values={})

    monkeypatch.setattr("mt_train.data.chunks.CHUNK_ROWS", 1)
    cache = TokenCache(tmp_path, 1, lambda text: None, silent_progress)
    rows = Rows([(1, 2, 3), (1, 3, 3)])
    with pytest.raises(ComponentError, match=r"'document\.margin'\], and others without"):
        cache.samples("key", lambda: (rows, range(2)), Wavering(), Rules(max_len=50, truncation="drop"))  # type: ignore[arg-type, return-value]


def test_left_shortens_both_prompts_alike_and_leaves_the_answers() -> None:
    (cut,) = fit_item(pair(10, 4, 6), limits("left", max_len=20))
    chosen, rejected = sides(cut)
    assert chosen[:5] == rejected[:5] == [BOS, 105, 106, 107, 108]
    assert (chosen[5:], rejected[5:]) == ([200, 201, 202, STOP], [300, 301, 302, 303, 304, STOP])
    assert len(cut.ids) == 20
    assert list(cut.token_values["place"][:5]) == [0.0, 6.0, 7.0, 8.0, 9.0]
    assert cut.document_values == {"margin": [1.5, -0.5]}


def test_middle_keeps_both_ends_of_the_prompts() -> None:
    (cut,) = fit_item(pair(10, 4, 6), limits("middle", max_len=20))
    assert sides(cut)[0][:5] == sides(cut)[1][:5] == [BOS, 100, 101, 107, 108]


def test_right_takes_the_ends_of_the_longest_answers() -> None:
    (cut,) = fit_item(pair(3, 4, 20), limits("right", max_len=20))
    chosen, rejected = sides(cut)
    assert chosen == [BOS, 100, 101, 200, 201, 202, STOP]
    assert rejected == [BOS, 100, 101, *range(300, 310)]
    assert list(cut.documents) == [7, 13]


def test_a_limit_of_prompts_or_answers_is_for_each_document() -> None:
    (cut,) = fit_item(pair(10, 4, 6), limits("left", max_source_len=4))
    assert sides(cut)[0][:4] == sides(cut)[1][:4] == [BOS, 106, 107, 108]
    (cut,) = fit_item(pair(10, 4, 6), limits("right", max_target_len=5))
    assert [len(each) for each in sides(cut)] == [14, 15]


@pytest.mark.parametrize("truncation", ["left", "middle"])
def test_answers_that_are_too_long_by_themselves_are_dropped_and_said(truncation: str) -> None:
    found = fit_item(pair(5, 10, 10), limits(truncation, max_len=20))
    assert isinstance(found, Rejected)
    assert found.reason == "answers alone longer than data.max_len; --data.truncation right cuts their ends"


def test_what_is_too_long_is_dropped_refused_or_never_split() -> None:
    assert fit_item(pair(5, 5, 5), limits("drop", max_len=19)) == Rejected("longer than data.max_len", "row-0")
    with pytest.raises(DataError, match=r"row-0: 20 tokens exceed data\.max_len=19; raise --data\.max-len"):
        fit_item(pair(5, 5, 5), limits("error", max_len=19))
    with pytest.raises(DataError, match=r"its 2 documents belong together and are not split\. Use --data\.truncation"):
        fit_item(pair(5, 5, 5), limits("split", max_len=19))
    assert fit_item(pair(8, 1, 1), limits("right", max_len=14)) == Rejected(NOTHING_LEFT, "row-0")


@given(
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(2, 50),
    st.sampled_from(["left", "middle", "right"]),
)
@settings(max_examples=300)
def test_a_cut_pair_keeps_one_prompt_and_the_begin_of_both_answers(
    prompt: int, chosen: int, rejected: int, most: int, truncation: str
) -> None:
    given = pair(prompt, chosen, rejected)
    found = fit_item(given, limits(truncation, max_len=most))
    if isinstance(found, Rejected):
        enough = 2 * 1 + (2 if truncation == "right" else chosen + rejected)
        assert most < enough or truncation == "right"
        return
    (cut,) = found
    assert len(cut.ids) <= most or len(given.ids) <= most
    prompts, answers = [], []
    start = 0
    for length in cut.documents:
        ids, trained = cut.ids[start : start + length], cut.trained[start : start + length]
        count = list(trained).index(True)
        assert all(trained[count:])
        prompts.append(list(ids[:count]))
        answers.append(list(ids[count:]))
        start += length
    assert prompts[0] == prompts[1]
    whole = [[*range(200, 200 + chosen - 1), STOP], [*range(300, 300 + rejected - 1), STOP]]
    for answer, full in zip(answers, whole, strict=True):
        assert answer == full[: len(answer)]
        assert truncation == "right" or answer == full


@pytest.mark.parametrize(("packing", "by_length"), [(False, False), (False, True), (True, False)])
def test_no_micro_batch_and_no_rank_ever_parts_a_pair(packing: bool, by_length: bool) -> None:
    samples = EncodedSamples()
    for number in range(23):
        samples.add(pair(1 + number % 3, 1 + number % 4, 2 + number % 5, f"row-{number}"))
    seen = []
    for rank in range(2):
        loader = Loader(
            samples,
            TokenObjective(),
            sequence_len=32,
            packing=packing,
            group_by_length=by_length,
            micro_batch_size=2,
            global_batch_size=6,
            rank=rank,
            world=2,
            seed=0,
        )
        windows = loader.windows(Position())
        while True:
            window = next(windows)
            for batch in window.batches:
                assert batch.items is not None
                margins = batch.documents.get("margin")
                if margins is not None:
                    assert margins[batch.items].eq(1.5).all()
                    assert margins[batch.items + 1].eq(-0.5).all()
                seen += list(batch.row_ids)
            if window.after.epoch == 1:
                break
    assert sorted(seen) == sorted(samples.row_ids)


@given(lengths_of_pairs, st.integers(1, 4))
def test_lengths_of_answers_add_up_over_chunks(lengths: list[tuple[int, int, int]], size: int) -> None:
    """Whatever rows are encoded together, and as a loop over them counts."""
    rules = Rules(max_len=1000, truncation="drop", bos_id=BOS, stop_ids=frozenset({STOP}))
    dataset = Rows(lengths)
    chunks = [range(start, min(start + size, len(lengths))) for start in range(0, len(lengths), size)]
    report = RowStatistics.total(encode(dataset, chunk, Pairs(), rules).report for chunk in chunks)
    assert [report.answers_total[side] for side in (0, 1)] == [
        sum(each[1 + side] for each in lengths) for side in (0, 1)
    ]
    most = [max((each[1 + side] for each in lengths), default=0) for side in (0, 1)]
    assert [report.answers_longest[side] for side in (0, 1)] == most
    assert (report.prompts_total, report.prompts_longest) == (
        sum(each[0] for each in lengths),
        max((each[0] for each in lengths), default=0),
    )
    assert report.first_is_longest == sum(chosen > rejected for _, chosen, rejected in lengths)
    assert RowStatistics.from_dict(json.loads(json.dumps(report.as_dict()))).as_dict() == report.as_dict()


@pytest.mark.parametrize("side", [0, 1])
def test_each_document_needs_its_begin_and_its_end(side: int) -> None:
    whole = pair(3, 2, 4)
    begins, ends = (0, whole.documents[0]), (whole.documents[0] - 1, len(whole.ids) - 1)

    def report(place: int | None) -> RowStatistics:
        class Spoiled(Pairs):
            def encode(self, row: Any) -> Sample:
                return replace(whole, ids=[99 if own == place else token for own, token in enumerate(whole.ids)])

        rules = Rules(max_len=1000, truncation="drop", bos_id=BOS, stop_ids=frozenset({STOP}))
        return encode(Rows([(1, 1, 1)] * 2), range(2), Spoiled(), rules).report

    assert (report(None).begin_tokens, report(None).rows_without_stop) == ({1: 2}, 0)
    assert report(begins[side]).begin_tokens == {0: 2}
    assert report(ends[side]).rows_without_stop == 2
