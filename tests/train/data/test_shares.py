"""A token cache by many processes: the same bytes as of one, whoever is killed, and no chunk that two encode for nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mt_core.errors import DataError
from mt_train.data import chunk_files, chunks, leases
from mt_train.data.cache import TokenCache, UnusableCacheError
from mt_train.data.cache_folder import open_samples
from mt_train.data.cache_index import FINGERPRINT, PLAN
from mt_train.data.chunks import Share
from mt_train.data.encoding import encode
from mt_train.data.leases import LEASE_SECONDS, hold_lease

WORKER = Path(__file__).with_name("cache_worker.py")
_spec = importlib.util.spec_from_file_location("cache_worker", WORKER)
assert _spec is not None
assert _spec.loader is not None
worker = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(worker)
MADE_OF = worker.MADE_OF


@pytest.fixture(scope="module", autouse=True)
def small_chunks() -> Iterator[None]:
    """Those of the worker, in this process too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK_ROWS", worker.CHUNK_ROWS)
        yield


def cache_in(root: Path, said: list[str] | None = None) -> TokenCache:
    heard = [] if said is None else said
    return TokenCache(root, 1, heard.append, lambda: nullcontext(lambda done, total: None))


def content(folder: Path) -> dict[str, bytes]:
    """The fingerprint is written by who reads the rows first."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != FINGERPRINT}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process makes."""
    root = tmp_path_factory.mktemp("whole")
    worker.make(root, workers=1)
    return root / "key"


def start(root: Path, share: Share, seconds: float) -> subprocess.Popen[bytes]:
    words = [str(WORKER), str(root), "1", str(seconds), str(share.index), str(share.count)]
    return subprocess.Popen([sys.executable, *words])


def build_with_kills(root: Path, *, processes: int, kills: int, seed: int) -> None:
    """Start a process for each part, kill some at random times, start those again, and finish."""
    chance = random.Random(seed)
    running = {number: start(root, Share(number, processes), 0.01) for number in range(processes)}
    victims = chance.sample(sorted(running), kills)
    while not list(root.glob("key.building/chunk-*.lease")):
        time.sleep(0.01)
    for number in victims:
        time.sleep(chance.uniform(0, 0.3))
        running[number].kill()
        running[number].wait(timeout=60)
    for number in victims:
        running[number] = start(root, Share(number, processes), 0.0)
    for process in running.values():
        assert process.wait(timeout=120) == 0
    cache_in(root).finish_shares("key", worker.RULES, made_of=MADE_OF)


@pytest.mark.parametrize(
    ("processes", "kills", "seed"),
    [(3, 1, 0), *(pytest.param(8, 3, seed, marks=pytest.mark.soak) for seed in range(10))],
)
def test_parts_of_which_some_are_killed_leave_the_bytes_of_one_process(
    processes: int, kills: int, seed: int, whole: Path, tmp_path: Path
) -> None:
    build_with_kills(tmp_path, processes=processes, kills=kills, seed=seed)
    made = content(tmp_path / "key")
    assert {name: data for name, data in made.items() if name != PLAN} == content(whole)
    samples = cache_in(tmp_path).samples("key", lambda: pytest.fail("not encoded"), worker.Count(), worker.RULES)
    assert samples.fingerprint() == open_samples(whole).fingerprint()


def test_a_plain_run_encodes_what_the_parts_have_left(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in (0, 2):
        worker.encode_share(tmp_path, Share(index, 4))
    read: list[int] = []
    row = worker.Rows.row
    monkeypatch.setattr(worker.Rows, "row", lambda self, index: (read.append(index), row(self, index))[1])
    worker.make(tmp_path, workers=1)
    assert {index // 16 % 4 for index in read} == {1, 3}
    assert content(tmp_path / "key") == content(whole)


def test_parts_that_are_missing_are_named_and_nothing_is_lost(tmp_path: Path, whole: Path) -> None:
    cache = cache_in(tmp_path)
    with pytest.raises(DataError, match=r"no part of these rows is in .*key\.building"):
        cache.finish_shares("key", worker.RULES, made_of=MADE_OF)
    worker.encode_share(tmp_path, Share(0, 3))
    worker.encode_share(tmp_path, Share(1, 3))
    with pytest.raises(DataError, match=r"6 of 20 chunks are missing in .*\(2, 5, 8, 11, 14, 17\)"):
        cache.finish_shares("key", worker.RULES, made_of=MADE_OF)
    with pytest.raises(DataError, match=r"parts that are there:\n  key\.building is of another tokenizer\.path$"):
        cache.finish_shares("other", worker.RULES, made_of={**MADE_OF, "tokenizer.path": "1"})
    worker.encode_share(tmp_path, Share(2, 3))
    assert cache.finish_shares("key", worker.RULES, made_of=MADE_OF) == open_samples(whole).report


def test_finishing_reads_heads_and_hashes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.encode_share(tmp_path, Share())
    monkeypatch.setattr(chunk_files.np, "load", None)
    monkeypatch.setattr(chunk_files, "read_chunk", lambda path: pytest.fail("a chunk is read"))
    monkeypatch.setattr(chunk_files, "is_intact", lambda *given: pytest.fail("a chunk is read"))
    before = {path.name: path.stat().st_ino for path in (tmp_path / "key.building").glob("chunk-*")}
    cache_in(tmp_path).finish_shares("key", worker.RULES, made_of=MADE_OF)
    after = {path.name: path.stat().st_ino for path in (tmp_path / "key").glob("chunk-*")}
    assert after == before, "the same files, under another folder's name"


def test_only_a_damaged_chunk_is_encoded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.make(tmp_path, workers=1)
    before = content(tmp_path / "key")
    chunk = tmp_path / "key/chunk-000005"
    spoiled = bytearray(chunk.read_bytes())
    spoiled[-1] ^= 4
    chunk.write_bytes(spoiled)
    read: list[int] = []
    row = worker.Rows.row
    monkeypatch.setattr(worker.Rows, "row", lambda self, index: (read.append(index), row(self, index))[1])
    said: list[str] = []
    source = (worker.Rows(0.0), range(worker.ROWS))
    cache_in(tmp_path, said).samples("key", lambda: source, worker.Count(), worker.RULES, made_of=MADE_OF)
    assert "is damaged; its rows are encoded anew" in said[0]
    assert read == list(range(80, 96))
    assert content(tmp_path / "key") == before


# ------------------------------------------------------------------------------------------------------------ leases


def a_lease(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**leases._holder(os.getpid()), "time": 0.0, **changes}))


def is_free(path: Path) -> bool:
    with hold_lease(path) as is_ours:
        return is_ours


def test_a_lease_is_of_one_and_given_back_also_after_an_error(tmp_path: Path) -> None:
    path = tmp_path / "lease"

    def fail() -> None:
        with hold_lease(path) as is_ours:
            assert is_ours
            assert json.loads(path.read_text())["process"] == os.getpid()
            assert not is_free(path)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert not path.exists()


def test_a_lease_of_a_dead_process_of_this_host_is_taken_over_at_once(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    told = leases._holder(process.pid)
    path.write_text(json.dumps(told))
    assert not is_free(path)
    process.send_signal(signal.SIGKILL)
    while leases._started(process.pid) is not None:  # dead, and not waited for
        time.sleep(0.01)
    assert is_free(path)
    process.wait(timeout=10)
    path.write_text(json.dumps(told))
    assert is_free(path)


def test_a_number_that_another_process_has_now_is_no_holder(tmp_path: Path) -> None:
    a_lease(tmp_path / "lease", started="1")
    assert is_free(tmp_path / "lease")


@pytest.mark.parametrize(("age", "free"), [(LEASE_SECONDS - 60, False), (LEASE_SECONDS + 1, True)])
def test_a_lease_of_another_host_is_taken_over_by_its_age(age: float, free: bool, tmp_path: Path) -> None:
    path = tmp_path / "lease"
    a_lease(path, host="elsewhere")
    os.utime(path, (time.time() - age,) * 2)
    assert is_free(path) == free


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"host": 3}'])
def test_a_lease_that_a_kill_cut_off_does_not_stay(text: str, tmp_path: Path) -> None:
    path = tmp_path / "lease"
    path.write_text(text)
    assert not is_free(path), "it may be written just now"
    os.utime(path, (time.time() - 10,) * 2)
    assert is_free(path)


def test_a_chunk_that_another_host_encodes_is_waited_for(tmp_path: Path) -> None:
    """It takes the lease over when that is old, as the chunk does not come."""
    (tmp_path / "key.building").mkdir()
    path = tmp_path / "key.building/chunk-000002.lease"
    a_lease(path, host="elsewhere")
    os.utime(path, (time.time() - LEASE_SECONDS + 1.5,) * 2)
    begin = time.monotonic()
    worker.encode_share(tmp_path, Share(0, 2))
    assert time.monotonic() - begin > 1
    assert (tmp_path / "key.building/chunk-000002").exists()


def test_a_full_disk_is_named_and_leaves_no_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.encode_share(tmp_path, Share(0, 2))

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(chunk_files.os, "fsync", full)
    with pytest.raises(UnusableCacheError, match="cannot be written: No space left on device"):
        worker.make(tmp_path, workers=1)
    monkeypatch.undo()
    assert not list(tmp_path.rglob("*chunk*tmp*")) + list(tmp_path.rglob("*.lease"))
    assert len(list((tmp_path / "key.building").glob("chunk-*"))) == 10
    assert len(worker.make(tmp_path, workers=1)) > worker.ROWS


# ------------------------------------------------------------------------------------------------- columns in chunks


@pytest.mark.parametrize("seed", range(5))
def test_columns_in_chunks_read_as_one_array(seed: int, whole: Path) -> None:
    rng = np.random.default_rng(seed)
    samples, plain = open_samples(whole), encode(worker.Rows(0.0), range(worker.ROWS), worker.Count(), worker.RULES)
    assert samples.names == plain.names
    for name in plain.names:
        ours, theirs = samples.column(name), plain.column(name)
        assert (len(ours), np.asarray(ours).dtype) == (len(theirs), theirs.dtype)
        assert np.array_equal(np.asarray(ours), theirs)
        for _ in range(50):
            start, stop = (int(each) for each in rng.integers(-5, len(theirs) + 5, 2))
            step = int(rng.choice([1, 1, 2, -1]))
            assert np.array_equal(ours[start:stop:step], theirs[start:stop:step]), (name, start, stop, step)
        if len(theirs):
            places = rng.integers(-len(theirs), len(theirs), 64)
            assert np.array_equal(ours[places], theirs[places])
            assert ours[int(places[0])] == theirs[int(places[0])]
    numbers = rng.permutation(len(plain))[:40]
    lengths = plain.lengths_of(numbers)
    assert np.array_equal(samples.lengths_of(numbers), lengths)
    for own, other in zip(samples.gather(numbers, lengths), plain.gather(numbers, lengths), strict=True):
        assert np.array_equal(own, other)  # type: ignore[arg-type]
    assert samples.row_ids.of(numbers)[:] == plain.row_ids.of(numbers)[:]
