"""The token cache: the same samples, whoever made it, with how many processes, and however often one was killed."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mt_core.errors import DataError
from mt_train.data import cache as cache_module
from mt_train.data import chunk_files, chunks, locks
from mt_train.data.cache_folder import building_of, open_samples
from mt_train.data.cache_index import HASHES, META
from mt_train.data.encoding import encode
from mt_train.data.measures import count_duplicates

WORKER = Path(__file__).with_name("cache_worker.py")
_spec = importlib.util.spec_from_file_location("cache_worker", WORKER)
assert _spec is not None
assert _spec.loader is not None
worker = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(worker)
RULES, ROWS, Count, Rows, make = worker.RULES, worker.ROWS, worker.Count, worker.Rows, worker.make


@pytest.fixture(scope="module", autouse=True)
def small_chunks() -> Iterator[None]:
    """Those of the worker, in this process too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK_ROWS", worker.CHUNK_ROWS)
        yield


def content(folder: Path) -> dict[str, bytes]:
    """All files but those that a killed process had not finished writing, which nobody reads."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if not path.name.startswith(".tmp-")}


@pytest.fixture(scope="module")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a cache that one process made."""
    root = tmp_path_factory.mktemp("made")
    make(root, workers=1)
    return root / "key"


def test_cached_samples_are_those_in_memory(cache_folder: Path) -> None:
    cached, fresh = open_samples(cache_folder), encode(Rows(0.0), range(ROWS), Count(), RULES)
    assert len(cached) == len(fresh) > ROWS
    for ours, theirs in zip(cached, fresh, strict=True):
        assert (ours.ids.tolist(), ours.trained.tolist(), ours.row_id, ours.weights) == (
            theirs.ids.tolist(),
            theirs.trained.tolist(),
            theirs.row_id,
            theirs.weights,
        )
    assert any(sample.weights for sample in cached)
    count_duplicates(fresh)
    assert cached.report.duplicates
    assert cached.report == fresh.report
    assert cached.report.known.tolist() == fresh.report.known.tolist()  # type: ignore[union-attr]
    assert cached.fingerprint() == fresh.fingerprint()
    assert cached.report.hashes is not None
    assert cached.report.hashes.tolist() == fresh.report.hashes.tolist()  # type: ignore[union-attr]
    assert list(cached.lengths) == list(fresh.lengths)
    assert cached.row_ids[-1] == fresh.row_ids[-1]


@pytest.mark.parametrize("workers", [2, 5])
def test_any_number_of_processes_leaves_the_same_bytes(workers: int, cache_folder: Path, tmp_path: Path) -> None:
    make(tmp_path, workers=workers)
    assert content(tmp_path / "key") == content(cache_folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key", "key.lock"]


def test_a_cache_that_is_there_is_opened_without_its_source(cache_folder: Path) -> None:
    cache = cache_module.TokenCache(cache_folder.parent, 1, print, lambda: pytest.fail("nothing is encoded"))
    assert len(cache.samples("key", lambda: pytest.fail("the source is opened"), Count(), RULES)) > ROWS


def test_a_second_process_waits_for_the_one_that_holds_the_lock(tmp_path: Path) -> None:
    holder = os.open(tmp_path / "key.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(holder, fcntl.LOCK_EX)
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        assert not (tmp_path / "key.building").exists()
        os.close(holder)

    cache = cache_module.TokenCache(tmp_path, 1, say, lambda: nullcontext(lambda done, total: None))
    cache.samples("key", lambda: (Rows(0.0), range(ROWS)), Count(), RULES)
    assert len(said) == 1
    assert "waiting for another process that encodes the same rows" in said[0]


@pytest.mark.parametrize("finishes", [False, True], ids=["a run", "mt-data build in parts"])
def test_a_process_that_waited_reads_what_another_has_made_and_still_reads(
    cache_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finishes: bool
) -> None:
    """The other one is the next rank of the same run, which shares the lock until the run ends, and waits for this one."""
    holder = os.open(tmp_path / "key.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(holder, fcntl.LOCK_EX)
    asked: list[float] = []

    def wait(seconds: float) -> None:
        asked.append(seconds)
        assert len(asked) < 5, "waits for a lock that is shared to the end of the run"
        if len(asked) == 1:
            shutil.copytree(cache_folder, tmp_path / "key")
            fcntl.flock(holder, fcntl.LOCK_SH)

    monkeypatch.setattr(locks.time, "sleep", wait)
    cache = cache_module.TokenCache(tmp_path, 1, lambda text: None, lambda: pytest.fail("nothing is encoded"))
    if finishes:
        assert cache.finish_shares("key", RULES, made_of={}).rows_read == ROWS
    else:
        assert len(cache.samples("key", lambda: pytest.fail("the source is opened"), Count(), RULES)) > ROWS
    os.close(holder)


def test_a_killed_process_leaves_none_behind_that_keeps_the_lock(tmp_path: Path) -> None:
    first = subprocess.Popen([sys.executable, str(WORKER), str(tmp_path), "2", "0.05"])
    deadline = time.monotonic() + 30
    while not list(tmp_path.glob("key.building/chunk-*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    first.kill()
    first.wait(timeout=30)
    second = [sys.executable, str(WORKER), str(tmp_path), "1", "0"]
    subprocess.run(second, check=True, timeout=20)


def killed_at_random(root: Path, seed: int) -> None:
    """Two processes make the same cache, and one is killed at some time; the other one must come to an end."""
    chance = random.Random(seed)
    command = [sys.executable, str(WORKER), str(root), "2", "0.004"]
    both = [subprocess.Popen(command) for _ in range(2)]
    victim = both[chance.randrange(2)]
    time.sleep(chance.uniform(0.2, 1.2))
    victim.kill()
    for process in both:
        process.wait(timeout=300)
    other = next(process for process in both if process is not victim)
    assert other.returncode == 0


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 24))])
def test_two_at_once_with_one_killed_leave_the_same_bytes(seed: int, cache_folder: Path, tmp_path: Path) -> None:
    killed_at_random(tmp_path, seed)
    assert content(tmp_path / "key") == content(cache_folder)


def test_what_was_encoded_before_a_kill_is_not_encoded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    row = Rows.row

    def failing(self: Any, index: int) -> Any:
        read.append(index)
        if index == 200 and len(read) < 250:
            raise KeyboardInterrupt
        return row(self, index)

    monkeypatch.setattr(Rows, "row", failing)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, workers=1)
    before = len(read)
    read.extend([-1] * 50)
    make(tmp_path, workers=1)
    assert before == 201
    assert min(index for index in read[before:] if index >= 0) == 192, "chunks of 16 rows"


def test_a_damaged_chunk_is_encoded_again(tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finish = cache_module.finish
    monkeypatch.setattr(cache_module, "finish", lambda *given, **options: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, workers=1)
    chunk = tmp_path / "key.building/chunk-000003"
    damaged = bytearray(chunk.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    chunk.write_bytes(damaged)
    monkeypatch.setattr(cache_module, "finish", finish)
    make(tmp_path, workers=1)
    assert content(tmp_path / "key") == content(cache_folder)


def test_the_first_bad_row_is_the_error_for_any_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bad(self: Any, index: int) -> Any:
        if index in (70, 150, 300):
            raise DataError(f"row {index} is bad")
        return {"id": str(index), "n": 4}

    monkeypatch.setattr(Rows, "row", bad)
    for workers in (1, 3):
        with pytest.raises(DataError, match="row 70 is bad"):
            make(tmp_path / str(workers), workers=workers)


@pytest.mark.parametrize("workers", [1, 3])
def test_bad_rows_are_passed_over_counted_and_limited_over_all_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    row = Rows.row

    def bad(self: Any, index: int) -> Any:
        if index in (70, 150, 300):
            raise DataError(f"row {index} is bad")
        return row(self, index)

    monkeypatch.setattr(Rows, "row", bad)
    skip = replace(RULES, on_bad_row="skip", max_bad_rows=3)
    cached, fresh = make(tmp_path / "3", workers=workers, rules=skip), encode(Rows(0.0), range(ROWS), Count(), skip)
    count_duplicates(fresh)
    assert cached.report == fresh.report
    assert cached.report.bad_rows == [f"row {index} is bad" for index in (70, 150, 300)]
    assert cached.report.rows_kept + sum(cached.report.rows_dropped.values()) == ROWS
    for _ in range(2):
        with pytest.raises(DataError, match=r"^3 bad rows exceed data\.max_bad_rows=2(.|\n)*row 70 is bad"):
            make(tmp_path / "2", workers=workers, rules=replace(skip, max_bad_rows=2))


def test_the_first_bad_row_is_the_error_also_after_a_run_that_skipped_some_and_gave_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Rows.row

    def bad(self: Any, index: int) -> Any:
        if index in (70, 150, 151, 152):
            raise DataError(f"row {index} is bad")
        return row(self, index)

    monkeypatch.setattr(Rows, "row", bad)
    with pytest.raises(DataError, match=r"3 bad rows exceed data\.max_bad_rows=2"):
        make(tmp_path, workers=1, rules=replace(RULES, on_bad_row="skip", max_bad_rows=2))
    with pytest.raises(DataError, match=r"^row 70 is bad"):
        make(tmp_path, workers=1)


def test_a_process_that_is_killed_is_an_error_and_not_a_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = os.getpid()

    def killed(self: Rows, index: int) -> dict[str, Any]:
        assert os.getpid() != here, "no process of its own encodes"
        os._exit(9)

    monkeypatch.setattr(Rows, "row", killed)
    monkeypatch.setattr(chunks, "can_fork", lambda: True)  # whatever threads earlier tests have left
    with pytest.raises(DataError, match=r"set a smaller --data\.workers"):
        make(tmp_path, workers=2)


DAMAGES: dict[str, Callable[[bytearray, int], None]] = {
    "a flipped bit": lambda data, place: data.__setitem__(place, data[place] ^ (1 << place % 8)),
    "cut short": lambda data, place: data.__delitem__(slice(place, None)),
    "longer": lambda data, place: data.insert(place, 0),
    "zeros": lambda data, place: data.__setitem__(slice(place, place + 512), bytes(min(512, len(data) - place) + 1)),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("seed", range(3))
def test_any_damage_of_any_file_is_told_and_the_rows_are_encoded_anew(
    cache_folder: Path, tmp_path: Path, damage: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Places are drawn, the first and the last byte are among them. Encoding itself is stood for by a copy."""
    rng, whole = random.Random(seed), content(cache_folder)
    said: list[str] = []

    def copied(folder: Path, *given: Any) -> None:
        shutil.rmtree(building_of(folder), ignore_errors=True)
        folder.mkdir()
        for name, data in whole.items():
            (folder / name).write_bytes(data)

    monkeypatch.setattr(cache_module.TokenCache, "_encode", lambda *given: None)
    monkeypatch.setattr(cache_module, "finish", copied)
    cache = cache_module.TokenCache(tmp_path, 1, said.append, lambda: nullcontext(lambda done, total: None))
    (tmp_path / "key.lock").touch()
    copied(tmp_path / "key")
    for name, data in whole.items():
        places = {0, len(data) - 1, rng.randrange(len(data))} if data else {0} if damage == "longer" else set()
        for place in places:
            spoiled = bytearray(data)
            DAMAGES[damage](spoiled, place)
            (tmp_path / "key" / name).write_bytes(spoiled)
            said.clear()
            samples = cache.samples("key", lambda: pytest.fail("not opened"), Count(), RULES)
            assert [text for text in said if "key, of the token cache, is damaged; its rows" in text], (name, place)
            assert content(tmp_path / "key") == whole
            assert len(samples) > ROWS


def test_a_file_of_the_cache_that_is_gone_is_made_anew_and_who_reads_keeps_what_it_has(
    cache_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(cache_folder, tmp_path / "key")
    (tmp_path / "key.lock").touch()
    said: list[str] = []
    cache = cache_module.TokenCache(tmp_path, 1, said.append, lambda: nullcontext(lambda done, total: None))
    reader = cache.samples("key", lambda: pytest.fail("not opened"), Count(), RULES)
    first = reader[0].ids.tolist()
    (tmp_path / "key/chunk-000002").unlink()
    samples = cache.samples("key", lambda: (Rows(0.0), range(ROWS)), Count(), RULES, made_of=worker.MADE_OF)
    assert len(said) == 1, "it does not wait for the reader"
    assert content(tmp_path / "key") == content(cache_folder)
    assert reader[0].ids.tolist() == samples[0].ids.tolist() == first
    assert len(list(reader)) == len(samples)


@pytest.mark.parametrize("seed", range(40))
def test_any_damage_of_a_chunk_is_noticed(tmp_path: Path, chunk: bytes, seed: int) -> None:
    rng = random.Random(seed)
    place = rng.randrange(len(chunk)) if seed > 2 else (0, len(chunk) - 1, len(chunk) // 2)[seed]
    for damage in DAMAGES.values():
        spoiled = bytearray(chunk)
        damage(spoiled, place)
        (tmp_path / "chunk").write_bytes(spoiled)
        assert bytes(spoiled) == chunk or chunk_files.read_chunk(tmp_path / "chunk") is None
    assert chunk_files.read_chunk(tmp_path / "none") is None


@pytest.fixture(scope="module")
def chunk(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("chunk") / "chunk-000000"
    chunk_files.write_chunk(path, encode(Rows(0.0), range(16), Count(), RULES))
    assert chunk_files.read_chunk(path) is not None
    return path.read_bytes()


def test_a_cache_that_is_visibly_damaged_is_named(cache_folder: Path, tmp_path: Path) -> None:
    for name in (META, HASHES, "chunk-000000", "chunk-000003"):
        folder = tmp_path / name
        folder.mkdir()
        for other, data in content(cache_folder).items():
            (folder / other).write_bytes(data[: len(data) // 2] if other == name else data)
        with pytest.raises(DataError, match=rf"{name}, of the token cache, is damaged"):
            open_samples(folder)
