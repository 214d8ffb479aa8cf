"""A token cache behind an address: the same samples as on a disk, chunk by chunk within a limit, and nothing but a named error else."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import mt_plugin_datasets.remote as remote
from mt_core.errors import DataError
from mt_train.data import chunks, fetched_files
from mt_train.data.cache_folder import open_samples, use
from mt_train.data.cache_index import FINGERPRINT, META, CacheIndex
from mt_train.data.fetched_files import GIB, FetchedFiles
from mt_train.data.locks import folder_held
from mt_train.data.remote_cache import INCOMING, RemoteCache, put_cache

WORKER = Path(__file__).with_name("cache_worker.py")
_spec = importlib.util.spec_from_file_location("cache_worker", WORKER)
assert _spec is not None
assert _spec.loader is not None
worker = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(worker)
URL = "shaky://bucket/tokens"
CHUNK_ROWS, CHUNKS = 40, 8


class Shaky(MemoryFileSystem):  # type: ignore[misc]
    """A storage whose operations from ``first`` on, ``count`` of them, go wrong in some way; each takes ``seconds``."""

    protocol = ("shaky",)
    store: dict[str, Any] = {}
    pseudo_dirs = [""]
    cachable = False
    first, count, kind, seconds = 10**9, 0, "error", 0.0
    done: list[str] = []
    lock = threading.Lock()

    @classmethod
    def plan(cls, *, first: int = 10**9, count: int = 1, kind: str = "error", seconds: float = 0.0) -> None:
        cls.first, cls.count, cls.kind, cls.seconds = first, count, kind, seconds
        cls.done = []

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("shaky://", "memory://")))

    def _strike(self, deed: str, path: str) -> bool:
        with Shaky.lock:
            here = len(Shaky.done)
            Shaky.done.append(f"{deed} {path.rpartition('/')[2]}")
        time.sleep(Shaky.seconds)
        if not Shaky.first <= here < Shaky.first + Shaky.count:
            return False
        if Shaky.kind == "error":
            raise OSError("connection reset")
        return Shaky.kind == "half"

    def find(self, path: str, **rest: Any) -> Any:
        self._strike("find", path)
        return super().find(path, **rest)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **rest: Any) -> bytes:
        half = self._strike("read", path)
        piece: bytes = super().cat_file(path, start=start, end=end, **rest)
        return piece[: len(piece) // 2] if half else piece

    def put_file(self, lpath: str, rpath: str, **rest: Any) -> None:
        if Shaky.kind == "read-only":
            raise PermissionError("403 Forbidden")
        content = Path(lpath).read_bytes()
        self.pipe_file(rpath, content[: len(content) // 2] if self._strike("write", rpath) else content)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of 8 chunks, with its fingerprint."""
    root = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK_ROWS", CHUNK_ROWS)
        worker.make(root, workers=1)
    assert len(list((root / "key").glob("chunk-*"))) == CHUNKS
    return root / "key"


@pytest.fixture(autouse=True)
def storage(made: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The cache behind the address; no waits."""
    monkeypatch.setattr(remote, "WAITS", (0.0, 0.0))
    fsspec.register_implementation("shaky", Shaky, clobber=True)
    Shaky.store.clear()
    Shaky.plan()
    put_cache(made, f"{URL}/key", lambda text: None)
    Shaky.plan()
    yield
    Shaky.store.clear()


def opened(folder: Path, said: list[str] | None = None, limit: int = GIB) -> Any:
    fetched = FetchedFiles(folder, limit, print if said is None else said.append)
    return RemoteCache(URL, fetched).samples("key", worker.MADE_OF)


def content(samples: Any) -> list[Any]:
    return [(each.ids.tolist(), each.trained.tolist(), each.row_id, each.weights) for each in samples]


def tokens(samples: Any) -> list[bytes]:
    """All ids and trained places, each chunk read twice."""
    return [np.asarray(samples.column(name)).tobytes() for name in ("ids", "trained")]


def copies(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file() and path.suffix != ".lock"}


def sizes(made: Path) -> tuple[int, int, int]:
    """Bytes of what is always read, of all chunks, of the largest one."""
    index = CacheIndex.parse((made / META).read_bytes())
    of_chunks = [each.size for each in index.chunks.values()]
    return sum(each.size for each in index.files.values()), sum(of_chunks), max(of_chunks)


def test_samples_are_those_of_the_folder_and_chunks_come_when_they_are_read(made: Path, tmp_path: Path):
    there, here = opened(tmp_path), open_samples(made)
    assert there.fingerprint() == here.fingerprint()
    assert there.report == here.report
    assert there.lengths.tolist() == here.lengths.tolist()
    assert not [name for name in Shaky.done if "chunk-" in name]
    numbers = np.array([300, 3, 4, 299])
    for ours, theirs in zip(
        there.gather(numbers, there.lengths_of(numbers)), here.gather(numbers, here.lengths_of(numbers)), strict=True
    ):
        assert (ours is None) == (theirs is None)
        assert ours is None or np.array_equal(ours, theirs)
    assert sorted(name for name in Shaky.done if "read chunk-" in name) == ["read chunk-000000", "read chunk-000004"]
    assert content(there) == content(here)
    before = len(Shaky.done)
    assert content(opened(tmp_path)) == content(here)
    assert not [name for name in Shaky.done[before:] if "chunk-" in name], "another process finds them"


@pytest.mark.parametrize("kind", ["error", "half"])
def test_one_fault_at_any_operation_is_overcome(kind: str, made: Path, tmp_path: Path):
    expected = tokens(open_samples(made))
    tokens(opened(tmp_path / "first"))
    total = len(Shaky.done)
    assert total > CHUNKS + 5
    for first in range(total):
        Shaky.plan(first=first, kind=kind)
        assert tokens(opened(tmp_path / f"{first}")) == expected


def test_a_storage_that_fails_for_good_at_any_operation_is_named_and_gone_on_with(made: Path, tmp_path: Path):
    expected = tokens(open_samples(made))
    tokens(opened(tmp_path / "first"))
    total = len(Shaky.done)
    for first in range(total):
        Shaky.plan(first=first, count=10**6)
        with pytest.raises(DataError, match=r"shaky://.*bucket/tokens.* cannot be fetched, tried 3 times"):
            tokens(opened(tmp_path / f"{first}"))
        kept = copies(tmp_path / f"{first}") if (tmp_path / f"{first}").exists() else {}
        Shaky.plan()
        assert tokens(opened(tmp_path / f"{first}")) == expected
        came = [name for name in Shaky.done if name.startswith("read chunk")]
        assert len(came) == CHUNKS - len([size for name, size in kept.items() if name in chunk_names(made)])
        assert not list((tmp_path / f"{first}").glob("*.part"))


def chunk_names(made: Path) -> set[str]:
    index = CacheIndex.parse((made / META).read_bytes())
    return {f"{each.digest}-{each.size}" for each in index.chunks.values()}


def test_the_folder_never_has_more_bytes_than_the_limit(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole, _, largest = sizes(made)
    most: list[int] = []
    fetch = remote.fetch

    def watched(file: Any, place: Path) -> None:
        fetch(file, place)
        most.append(bytes_below(tmp_path))

    monkeypatch.setattr(remote, "fetch", watched)
    said: list[str] = []
    there = opened(tmp_path, said, whole + 2 * largest)
    order = np.random.Generator(np.random.PCG64(3)).permutation(len(there))[:80]
    here = open_samples(made)
    for start in range(0, len(order), 8):
        numbers = order[start : start + 8]
        ours, theirs = (each.gather(numbers, each.lengths_of(numbers)) for each in (there, here))
        assert np.array_equal(ours[0], theirs[0])
    assert max(most) <= whole + 2 * largest
    assert any("fetch chunks again and again; raise MT_CHUNK_CACHE_GIB" in line for line in said)
    with pytest.raises(DataError, match=r"needs at least .* GiB .*MT_CHUNK_CACHE_GIB allows .* GiB\. Raise it"):
        opened(tmp_path / "small", limit=whole + 2 * largest - 1)


def test_the_least_recently_used_chunk_that_nobody_reads_makes_room(made: Path, tmp_path: Path):
    whole, _, largest = sizes(made)
    there = opened(tmp_path, limit=whole + 3 * largest)
    parts = there.column("ids").parts
    first, second = (tmp_path / parts[number].chunk.wanted.name for number in (0, 1))
    parts[0][:1], parts[1][:1]
    os.utime(first, (1, 1))
    os.utime(second, (2, 2))
    with first.open("rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        parts[2][:1], parts[3][:1]
        assert (first.exists(), second.exists()) == (True, False)
    os.utime(first, (1, 1))
    parts[4][:1]
    assert not first.exists()


def test_a_part_that_is_a_whole_copy_by_now_makes_no_room(tmp_path: Path):
    """It was there when the folder was listed, and takes as many bytes under its own name."""
    part = tmp_path / f"{'a' * 64}-10.part"
    fetched = FetchedFiles(tmp_path, GIB, print)
    assert not fetched._remove(part)
    part.mkdir()
    assert fetched._remove(part)
    assert not list(tmp_path.iterdir())


def test_files_of_numbers_stay_as_long_as_the_samples_live(made: Path, tmp_path: Path):
    whole, _, largest = sizes(made)
    there = opened(tmp_path, limit=whole + 2 * largest)
    for path in tmp_path.iterdir():
        os.utime(path, (1, 1))
    tokens(there)
    assert sum(name not in chunk_names(made) for name in copies(tmp_path)) == len(
        {*CacheIndex.parse((made / META).read_bytes()).files}
    ) - len(same_files(made))


def same_files(made: Path) -> list[str]:
    """Names of files whose content another one has, too: they are one copy."""
    digests = [each.digest for each in CacheIndex.parse((made / META).read_bytes()).files.values()]
    return [each for place, each in enumerate(digests) if each in digests[:place]]


def test_what_others_read_is_waited_for_and_named_when_it_never_ends(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fetched_files, "_WAIT_SECONDS", 0.5)
    monkeypatch.setattr(fetched_files, "_TOLD_SECONDS", 0.1)
    whole, _, largest = sizes(made)
    said: list[str] = []
    there = opened(tmp_path, said, whole + 2 * largest)
    parts = there.column("ids").parts
    parts[0][:1], parts[1][:1]
    readers = [(tmp_path / parts[number].chunk.wanted.name).open("rb") for number in (0, 1)]
    for reader in readers:
        fcntl.flock(reader, fcntl.LOCK_SH)
    with pytest.raises(DataError, match=r"chunk-000002 needs .* are in use, .*Raise MT_CHUNK_CACHE_GIB"):
        parts[2][:1]
    assert any(line.startswith("waiting for room in") for line in said)
    threading.Timer(0.2, readers[0].close).start()
    assert len(parts[2][:1]) == 1
    readers[1].close()


@pytest.mark.parametrize("change", [lambda data: data[:-1] + bytes([data[-1] ^ 1]), lambda data: bytes(len(data))])
def test_a_chunk_that_is_replaced_or_damaged_is_named_and_not_kept(change: Any, made: Path, tmp_path: Path):
    place = "/bucket/tokens/key/chunk-000003"
    right = Shaky().cat_file(place)
    Shaky().pipe_file(place, change(right))
    there = opened(tmp_path)
    with pytest.raises(
        DataError, match=r"key/chunk-000003 is not what the index of its token cache says .*Remove it there"
    ):
        tokens(there)
    Shaky().pipe_file(place, right)
    assert tokens(opened(tmp_path)) == tokens(open_samples(made))


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("chunk-000003", lambda data: data[:-1], r"chunk-000003 has .* bytes, not .*, which its index names"),
        ("chunk-000003", None, r"chunk-000003 is not there, which its index names"),
        ("hashes", lambda data: bytes(len(data)), r"hashes is not what the index"),
        (META, lambda data: data[:-30], rf"{META} is damaged, or of another version"),
        (META, lambda data: b"{}\n00000000\n", rf"{META} is damaged, or of another version"),
        (META, None, r"has no token cache key"),
    ],
)
def test_what_is_missing_or_not_whole_is_named(name: str, change: Any, said: str, tmp_path: Path):
    place = f"/bucket/tokens/key/{name}"
    if change is None:
        Shaky().rm_file(place)
    else:
        Shaky().pipe_file(place, change(Shaky().cat_file(place)))
    with pytest.raises(DataError, match=said):
        tokens(opened(tmp_path))


@pytest.mark.parametrize("name", ["../../etc/passwd", "chunk-000000/../../x", "hashes/..", "ends.sh"])
def test_an_index_names_no_file_outside_of_its_cache(name: str, made: Path):
    index = CacheIndex.parse((made / META).read_bytes())
    path = made.parent / "strange"
    CacheIndex(index.report, index.chunks, {**index.files, name: index.files["hashes"]}, {}).write(path)
    with pytest.raises(ValueError, match="no files of a token cache"):
        CacheIndex.parse(path.read_bytes())


def test_a_key_that_is_not_there_is_refused_with_what_others_are_made_of(tmp_path: Path):
    cache = RemoteCache(URL, FetchedFiles(tmp_path, GIB, print))
    with pytest.raises(
        DataError, match=r"no token cache other, .*; of 1 that are there key is of another rows\. Put it there"
    ):
        cache.samples("other", {"rows": "others"})
    with pytest.raises(
        DataError, match=r"shaky://empty has no token cache other, which is that of these rows and options\. Put"
    ):
        RemoteCache("shaky://empty", cache.fetched).samples("other", {})


def test_a_copy_that_was_damaged_here_is_fetched_anew(made: Path, tmp_path: Path):
    tokens(opened(tmp_path))
    name = min(chunk_names(made))
    data = bytearray((tmp_path / name).read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / name).write_bytes(data)
    said: list[str] = []
    assert tokens(opened(tmp_path, said)) == tokens(open_samples(made))
    assert [line for line in said if "is damaged; it is fetched anew" in line]


def test_a_full_disk_is_named_and_gone_on_with(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    there = opened(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        with pytest.raises(DataError, match=r"chunk-000000 cannot be written to .*Make room there"):
            tokens(there)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    monkeypatch.setattr(fetched_files, "_TOLD_SECONDS", 0.1)
    full = shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(fetched_files.shutil, "disk_usage", lambda path: full)
    for path in tmp_path.iterdir():
        if path.name in chunk_names(made):
            path.unlink()
    with pytest.raises(DataError, match=r"chunk-000000 needs .* and 9.31e-09 GiB are free"):
        there.column("ids").parts[0][:1]
    monkeypatch.undo()
    monkeypatch.setattr(remote, "WAITS", ())
    assert tokens(there) == tokens(open_samples(made))


# ---------------------------------------------------------------------------------------------------------------- putting it there


def test_the_index_arrives_last_and_what_was_cut_short_is_gone_on_with(made: Path, tmp_path: Path):
    Shaky.store.clear()
    Shaky.plan()
    put_cache(made, f"{URL}/key", print)
    total = len([name for name in Shaky.done if name.startswith("write")])
    assert [name for name in Shaky.done if name.startswith("write")][-1] == f"write {META}"
    for first in range(0, len(Shaky.done), 3):
        Shaky.store.clear()
        Shaky.plan(first=first, count=10**6)
        with pytest.raises(DataError, match=r"shaky://.* cannot be (written|fetched), tried 3 times"):
            put_cache(made, f"{URL}/key", print)
        assert not Shaky().exists(f"/bucket/tokens/key/{META}")
        arrived = len([path for path in Shaky.store if not path.endswith(INCOMING)])
        Shaky.plan()
        put_cache(made, f"{URL}/key", print)
        written = [name for name in Shaky.done if name.startswith("write") and not name.endswith(INCOMING)]
        assert len(written) == total - 1 - arrived
        assert tokens(opened(tmp_path / f"{first}")) == tokens(open_samples(made))
    Shaky.plan()
    assert put_cache(made, f"{URL}/key", print) == 0
    assert not [name for name in Shaky.done if name.startswith("write")]


@pytest.mark.parametrize("kind", ["error", "half"])
def test_one_fault_while_it_is_put_there_is_overcome(kind: str, made: Path, tmp_path: Path):
    for first in range(0, 30, 2):
        Shaky.store.clear()
        Shaky.plan(first=first, kind=kind)
        put_cache(made, f"{URL}/key", print)
        Shaky.plan()
        assert tokens(opened(tmp_path / f"{first}")) == tokens(open_samples(made))


def test_a_bucket_that_is_read_only_is_named(made: Path):
    Shaky.store.clear()
    Shaky.plan(kind="read-only")
    with pytest.raises(DataError, match=r"is refused or not there \(PermissionError: 403 Forbidden\)"):
        put_cache(made, f"{URL}/key", print)


def test_a_chunk_that_was_removed_there_is_put_there_again(made: Path, tmp_path: Path):
    Shaky().rm_file("/bucket/tokens/key/chunk-000003")
    assert put_cache(made, f"{URL}/key", print) == 1
    assert tokens(opened(tmp_path)) == tokens(open_samples(made))


def test_a_whole_cache_that_was_made_elsewhere_stays_and_half_of_one_is_replaced(made: Path, tmp_path: Path):
    other = tmp_path / "other" / "key"
    row = worker.Rows.row
    with pytest.MonkeyPatch.context() as patch:  # the same rows, whose file lies elsewhere
        patch.setattr(chunks, "CHUNK_ROWS", CHUNK_ROWS)
        patch.setattr(worker.Rows, "row", lambda self, index: {**row(self, index), "id": f"here é:{index}"})
        worker.make(other.parent, workers=1)
    assert {path.stat().st_size for path in other.glob("chunk-*")} == {
        path.stat().st_size for path in made.glob("chunk-*")
    }
    said: list[str] = []
    assert put_cache(other, f"{URL}/key", said.append) == 0
    assert said == [f"{URL}/key is there already, made elsewhere"]
    assert content(opened(tmp_path / "a")) == content(open_samples(made))
    Shaky().rm_file(f"/bucket/tokens/key/{META}")
    put_cache(other, f"{URL}/key", print)
    assert content(opened(tmp_path / "b")) == content(open_samples(other))


def test_a_folder_that_was_copied_by_hand_is_read_with_or_without_its_fingerprint(made: Path, tmp_path: Path):
    shutil.copytree(made, tmp_path / "there/key")
    (tmp_path / "there/key" / FINGERPRINT).unlink()
    said: list[str] = []
    cache = RemoteCache(f"file://{tmp_path}/there", FetchedFiles(tmp_path / "here", GIB, said.append))
    there = cache.samples("key", {})
    assert there.fingerprint() == use(made).fingerprint()  # type: ignore[union-attr]
    assert content(there) == content(open_samples(made))
    assert [
        line for line in said if f"has no {FINGERPRINT}, for which each process fetches and reads all chunks" in line
    ]


PROCESS = """
import sys, json
from pathlib import Path
import numpy as np
from mt_train.data.fetched_files import FetchedFiles
from mt_train.data.locks import folder_held
from mt_train.data.remote_cache import RemoteCache
url, root, limit, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
samples = RemoteCache(url, FetchedFiles(root, limit, lambda text: None)).samples("key", {})
order = np.random.Generator(np.random.PCG64(seed)).permutation(len(samples))[:30]
print(int(sum(samples[int(number)].ids.sum() * (place + 1) for place, number in enumerate(order))))
"""


def test_processes_share_what_they_fetch_within_the_limit(made: Path, tmp_path: Path):
    """Four processes read 30 samples each, in orders of their own, where two chunks have room: none gets stuck."""
    shutil.copytree(made, tmp_path / "there/key")
    whole, _, largest = sizes(made)
    words = [
        sys.executable,
        "-c",
        PROCESS,
        f"file://{tmp_path}/there",
        str(tmp_path / "here"),
        str(whole + 2 * largest),
    ]
    running = [subprocess.Popen([*words, str(seed)], stdout=subprocess.PIPE, text=True) for seed in range(4)]
    most = 0
    while any(each.poll() is None for each in running):
        most = max(most, bytes_below(tmp_path / "here") if (tmp_path / "here").exists() else 0)
        time.sleep(0.01)
    here = open_samples(made)
    for seed, process in enumerate(running):
        order = np.random.Generator(np.random.PCG64(seed)).permutation(len(here))[:30]
        expected = int(sum(here[int(number)].ids.sum() * (place + 1) for place, number in enumerate(order)))
        assert process.communicate()[0] == f"{expected}\n"
    assert most <= whole + 2 * largest


def bytes_below(folder: Path) -> int:
    """Bytes of all files at one time: none goes while the folder is locked."""
    found = 0
    with folder_held(folder):
        for place, _, names in os.walk(folder):
            for name in names:
                with suppress(FileNotFoundError):  # a part that is whole now
                    found += os.stat(os.path.join(place, name)).st_size
    return found
