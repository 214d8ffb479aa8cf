"""Samples in flat columns: what goes in comes out, and a set of any size opens at once."""

from __future__ import annotations

import hashlib
import json
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mt_core import DataError, Sample
from mt_core.nn import TokenObjective
from mt_train.data.cache_folder import open_samples
from mt_train.data.cache_index import FINGERPRINT, HASHES, KNOWN, META, seal
from mt_train.data.columns import dtype_of
from mt_train.data.loader import Loader
from mt_train.data.samples import EncodedSamples

tokens = st.lists(st.tuples(st.integers(0, 2**31 - 1), st.booleans(), st.floats(0, 10)), min_size=1, max_size=20)
rows = st.lists(st.tuples(tokens, st.booleans(), st.text(max_size=10)), max_size=12)


@given(rows)
@settings(max_examples=30, deadline=None)
def test_any_samples_come_back_as_they_went_in(
    given_rows: list[tuple[list[tuple[int, bool, float]], bool, str]],
) -> None:
    samples = EncodedSamples()
    expected = []
    for content, weighted, name in given_rows:
        ids, trained, weights = (list(each) for each in zip(*content, strict=True))
        expected.append((ids, trained, name, tuple(weights) if weighted else None))
        samples.add(Sample(ids, trained, name, weights if weighted else None))
    got = [(each.ids.tolist(), each.trained.tolist(), each.row_id, each.weights) for each in samples]  # type: ignore[attr-defined]
    assert got == expected
    assert samples.row_ids[:] == [name for *_, name, _ in expected]
    assert samples.lengths.tolist() == [len(ids) for ids, *_ in expected]
    assert samples.report.tokens_trained == sum(sum(trained[1:]) for _, trained, *_ in expected)


def test_a_fingerprint_is_the_hash_that_checkpoints_have_stored() -> None:
    """As manifests since 0.1 define it: ids as int32, trained places as bytes, ends as int64, then weights as text."""
    samples = EncodedSamples()
    samples.add(Sample([5, 6, 7], [False, True, True], "a"))
    samples.add(Sample([8, 9], [False, True], "b", [0.1, 2.0]))
    samples.report.rows_kept = 2
    digest = hashlib.sha256(array("i", [5, 6, 7, 8, 9]).tobytes() + bytes([0, 1, 1, 0, 1]))
    digest.update(array("q", [0, 3, 5]).tobytes() + b"(1, (0.1, 2.0))")
    expected = {"rows": 2, "samples": 2, "tokens": 5, "trained": 3, "sha256": digest.hexdigest()}
    assert samples.fingerprint() == expected


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def make_huge_set(folder: Path, count: int) -> None:
    """Two chunks, of ``count`` samples without content: files with holes, whose last offsets are right."""
    index = {f"chunk-{number:06}": make_huge_chunk(folder / f"chunk-{number:06}", count // 2) for number in range(2)}
    sizes = {HASHES: count, KNOWN: count, "ends": count + 1, "row_id_ends": count + 1, "weighted": 0, "weight_ends": 1}
    for name, size in sizes.items():
        with (folder / name).open("wb") as file:
            file.truncate(size * 8)
            if end := {"ends": count * 8, "row_id_ends": count}.get(name):
                file.seek(count * 8)
                file.write(np.int64(end).tobytes())
    report = {"rows_read": count, "rows_kept": count, "rows_dropped": {}, "samples": count, "highest_id": 7}
    (folder / META).write_bytes(seal(json.dumps({"report": report, "chunks": index, "files": {}, "made_of": {}})))
    (folder / FINGERPRINT).write_bytes(seal(json.dumps({"sha256": "known"})))


def make_huge_chunk(path: Path, count: int) -> tuple[int, str, dict[str, int]]:
    counts = {"ends": count + 1, "ids": count * 8, "trained": count * 8, "row_ids": count, "row_id_ends": count + 1}
    counts |= {"weighted": 0, "weights": 0, "weight_ends": 1}
    ends = {"ends": count * 8, "row_id_ends": count}
    places, begin = {}, 0
    for name, values in sorted(counts.items(), key=lambda each: -dtype_of(each[0]).itemsize):
        size = values * dtype_of(name).itemsize
        places[name] = {"dtype": "-", "shape": [values], "data_offsets": [begin, begin + size]}
        begin += size
    header = json.dumps({"__metadata__": {"report": "{}"}, **places}).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(bytes(32) + len(header).to_bytes(8, "little") + header)
        start = file.tell()
        file.truncate(start + begin)
        for name, end in ends.items():
            file.seek(start + places[name]["data_offsets"][1] - 8)
            file.write(np.int64(end).tobytes())
    return start + begin, bytes(32).hex(), counts


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's account of memory")
def test_ten_million_cached_samples_open_without_being_read(tmp_path: Path) -> None:
    make_huge_set(tmp_path, 10_000_000)
    before = resident_bytes()
    samples = open_samples(tmp_path)
    assert (len(samples), samples.fingerprint(), samples.report.highest_id) == (10_000_000, {"sha256": "known"}, 7)
    assert resident_bytes() - before < 2**20
    options = {"sequence_len": 64, "packing": False, "micro_batch_size": 4, "global_batch_size": 4, "seed": 0}
    loader = Loader(samples, TokenObjective(), rank=0, world=1, **options)  # type: ignore[arg-type]
    assert len(loader.rows(0).cut(5_000_000, 4)) == 4
    assert resident_bytes() - before < 200 * 2**20, "8 bytes a sample for the order, and no list of rows"


@pytest.mark.parametrize("ids", [[1, 1 << 31], np.array([1, 1 << 31]), np.array([1, -(1 << 40)])], ids=str)
def test_an_id_that_does_not_fit_is_refused_and_never_wraps(ids: Any) -> None:
    samples = EncodedSamples()
    with pytest.raises(DataError, match=r"row-3: a token id is below -2147483648 or above 2147483647"):
        samples.add(Sample(ids, [True, True], "row-3", [1.0, 2.0]))
    samples.add(Sample([5, 6], [True, True], "row-4"))
    assert [(list(sample.ids), sample.weights) for sample in samples] == [([5, 6], None)], "and leaves no trace"


def test_a_pair_whose_id_does_not_fit_leaves_no_documents_and_no_values() -> None:
    samples = EncodedSamples()
    with pytest.raises(DataError, match=r"row-3: a token id is below"):
        samples.add(Sample([1, 1 << 31], [True, True], "row-3", None, [1, 1], {"margin": [2.0, 0.0]}))
    pair = Sample([5, 6, 7], [True, True, True], "row-4", None, [2, 1], {"margin": [1.0, 0.0]})
    samples.add(pair)
    assert [(list(each.documents), dict(each.document_values)) for each in samples] == [
        ([2, 1], {"margin": (1.0, 0.0)})
    ]
