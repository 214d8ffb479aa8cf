"""Files behind an address: fetched once, whole or not there, and never outside of the cache."""

from __future__ import annotations

import hashlib
import http.server
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from mt_core.errors import DataError
from mt_core.files import files_of, forget_remote, is_remote
from mt_plugin_datasets import file_cache, remote
from mt_plugin_datasets.remote import list_remote

CONTENT = bytes(range(256)) * 12  # three pieces of the test's size


class Faulty(MemoryFileSystem):  # type: ignore[misc]
    """A storage whose operations from ``first`` on, ``count`` of them, go wrong in some way."""

    protocol = ("faulty",)
    store: dict[str, Any] = {}
    pseudo_dirs = [""]
    cachable = False
    first, count, done, kind = 1_000_000, 0, 0, "error"

    @classmethod
    def plan(cls, *, first: int = 1_000_000, count: int = 1, kind: str = "error") -> None:
        cls.first, cls.count, cls.done, cls.kind = first, count, 0, kind

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("faulty://", "memory://")))

    def _strike(self) -> bool:
        here = Faulty.done
        Faulty.done += 1
        if not Faulty.first <= here < Faulty.first + Faulty.count:
            return False
        if Faulty.kind == "refused":
            raise PermissionError("403 Forbidden")
        if Faulty.kind == "error":
            raise OSError("connection reset")
        if Faulty.kind == "change":
            self.pipe_file("/bucket/rows.jsonl", CONTENT[::-1])
        return Faulty.kind == "half"

    def info(self, path: str, **rest: Any) -> Any:
        self._strike()
        return super().info(path, **rest)

    def find(self, path: str, **rest: Any) -> Any:
        self._strike()
        return super().find(path, **rest)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **rest: Any) -> bytes:
        half = self._strike()
        if Faulty.kind == "slow" and (end or len(CONTENT)) - (start or 0) > 100:
            raise fsspec.exceptions.FSTimeoutError
        piece: bytes = super().cat_file(path, start=start, end=end, **rest)
        return piece[: len(piece) // 2] if half else piece


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own, small pieces, no waits."""
    monkeypatch.setenv("MT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "WAITS", (0.0, 0.0))
    monkeypatch.setattr(remote, "PIECE", 1024)
    fsspec.register_implementation("faulty", Faulty, clobber=True)
    Faulty.plan()
    Faulty().pipe("/bucket/rows.jsonl", CONTENT)
    yield tmp_path / "cache" / "remote"
    let_go()


def let_go() -> None:
    """What the end of a process does."""
    for handle in file_cache._HELD.values():
        os.close(handle)
    file_cache._HELD.clear()
    forget_remote()


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and ".lock" not in path.suffixes]


def operations() -> int:
    files_of("faulty://bucket/rows.jsonl")
    return Faulty.done


@pytest.mark.parametrize("kind", ["error", "half"])
def test_one_fault_at_any_operation_is_overcome(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    total = operations()
    assert total >= 5  # what it is, three pieces, what it is now
    for first in range(total):
        monkeypatch.setenv("MT_CACHE", str(tmp_path / f"{kind}-{first}"))
        Faulty.plan(first=first, kind=kind)
        assert files_of("faulty://bucket/rows.jsonl")[0].read_bytes() == CONTENT


def test_a_storage_that_fails_for_good_at_any_operation_leaves_no_file_and_keeps_what_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    total = operations()
    for first in range(total):
        monkeypatch.setenv("MT_CACHE", str(tmp_path / f"dead-{first}"))
        Faulty.plan(first=first, count=1_000)
        with pytest.raises(DataError, match=r"faulty://.*bucket/rows.jsonl cannot be fetched, tried 3 times"):
            files_of("faulty://bucket/rows.jsonl")
        assert all(path.suffix == ".part" for path in files_below(tmp_path / f"dead-{first}"))
        Faulty.plan()
        assert files_of("faulty://bucket/rows.jsonl")[0].read_bytes() == CONTENT
        came = min(max(first - 1, 0), 3)  # pieces before the fault are not asked for again
        assert Faulty.done == total - came


def test_a_storage_that_is_too_slow_for_a_piece_is_asked_for_less_at_a_time() -> None:
    """As over HTTP, where fsspec gives a request five minutes, whatever its size."""
    Faulty.plan(kind="slow")
    assert files_of("faulty://bucket/rows.jsonl")[0].read_bytes() == CONTENT
    assert Faulty.done < 3 + 2 + len(CONTENT) / 50, "the size that came is kept for what follows"


def test_a_file_that_is_replaced_while_it_is_fetched_is_never_of_two_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    total = operations()
    for first in range(1, total):
        monkeypatch.setenv("MT_CACHE", str(tmp_path / f"change-{first}"))
        Faulty().pipe("/bucket/rows.jsonl", CONTENT)
        Faulty.plan(first=first, kind="change")
        with pytest.raises(DataError, match="changed while it was fetched"):
            files_of("faulty://bucket/rows.jsonl")
        assert files_of("faulty://bucket/rows.jsonl")[0].read_bytes() == CONTENT[::-1]


def test_a_refusal_is_not_asked_for_again():
    Faulty.plan(first=0, count=1_000, kind="refused")
    with pytest.raises(DataError, match=r"is refused or not there \(PermissionError: 403 Forbidden\)"):
        files_of("faulty://bucket/rows.jsonl")
    assert Faulty.done == 1


def test_a_file_that_changes_has_another_copy_in_the_next_run_and_one_that_does_not_is_not_read_again():
    first = files_of("faulty://bucket/rows.jsonl")
    forget_remote()
    Faulty.plan()
    assert files_of("faulty://bucket/rows.jsonl") == first
    assert Faulty.done == 1
    Faulty().pipe("/bucket/rows.jsonl", b"{}\n")
    assert files_of("faulty://bucket/rows.jsonl") == first  # this run's rows are of one version
    forget_remote()
    second = files_of("faulty://bucket/rows.jsonl")
    assert (second[0].read_bytes(), first[0].read_bytes()) == (b"{}\n", CONTENT)


def test_a_folder_stands_for_the_first_suffix_and_a_pattern_for_what_it_matches():
    files = fsspec.filesystem("memory")
    files.pipe({f"/set/{name}": b"{}" for name in ("b.jsonl", "a.jsonl.gz", "deep/c.jsonl", "d.json", "README.md")})
    names = lambda found: [path.name.partition("-")[2] for path in found]  # noqa: E731
    assert names(files_of("memory://set", ".jsonl", ".json")) == ["a.jsonl.gz", "b.jsonl", "c.jsonl"]
    assert names(files_of("memory://set/*.json", ".jsonl")) == ["d.json"]
    with pytest.raises(DataError, match=r"stands for no \.csv file"):
        files_of("memory://set", ".csv")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nowhere://b/x", "Protocol not known: nowhere"),
        ("https://user:hunter22hunter@host/x", "has a secret in it"),
        ("https://host/x?X-Amz-Signature=0123456789abcdef", "has a secret in it"),
        ("memory://set/none.jsonl", "is refused or not there"),
    ],
)
def test_an_address_that_cannot_be_read_is_named_without_its_secret(url: str, said: str):
    with pytest.raises(DataError, match=said) as caught:
        files_of(url, ".jsonl")
    assert "hunter22" not in str(caught.value)
    assert "0123456789abcdef" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "package"), [("s3://b/x", r"mt-plugin-datasets\[s3\]"), ("gs://b/x", r"mt-plugin-datasets\[gcs\]")]
)
def test_a_missing_package_is_named(url: str, package: str, monkeypatch: pytest.MonkeyPatch):
    for name in ("s3fs", "gcsfs"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DataError, match=f"pip install '{package}'"):
        files_of(url)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/..", "a/../../b", "x\0y", "é" * 300, ".", "-rf", "a\\..\\b"])
def test_no_name_in_a_bucket_leads_out_of_the_cache(name: str, tmp_path: Path):
    place = remote.RemoteFile(Faulty(), name, 1, "0123456789abcdef").place(tmp_path)
    assert place.resolve().parent.parent == tmp_path.resolve()
    assert len(place.name.encode()) < 240


def test_the_least_recently_used_folder_that_nobody_reads_makes_room(cache: Path, monkeypatch: pytest.MonkeyPatch):
    files = fsspec.filesystem("memory")
    files.pipe({f"/{name}/x.jsonl": bytes(1000) for name in ("old", "new", "more")})
    monkeypatch.setenv("MT_REMOTE_CACHE_GIB", str(2500 / (1 << 30)))
    old, new = (files_of(f"memory://{name}/x.jsonl")[0] for name in ("old", "new"))
    os.utime(old.parent.with_suffix(".lock"), (1, 1))
    with pytest.raises(DataError, match=r"memory://more/x.jsonl needs .* GiB are in use.*Raise MT_REMOTE_CACHE_GIB"):
        files_of("memory://more/x.jsonl")
    let_go()
    assert files_of("memory://more/x.jsonl")[0].exists()
    assert (old.exists(), new.exists()) == (False, True)
    assert files_of("memory://old/x.jsonl") == [old]  # fetched again


def test_a_file_that_another_process_has_just_renamed_is_no_fault_of_the_cache(cache: Path):
    fsspec.filesystem("memory").pipe({f"/rows/{name}.jsonl": bytes(1000) for name in "xy"})
    first = files_of("memory://rows/x.jsonl")[0]
    (first.parent / ".y.part").symlink_to("gone")  # listed, and not there any more
    assert files_of("memory://rows/y.jsonl")[0].read_bytes() == bytes(1000)


def test_a_full_disk_is_named_and_what_was_fetched_is_kept(cache: Path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, before[1]))
    try:
        with pytest.raises(DataError, match=r"cannot be written to .*Make room there"):
            files_of("faulty://bucket/rows.jsonl")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.stat().st_size for path in files_below(cache)] == [2048]
    Faulty.plan()
    assert files_of("faulty://bucket/rows.jsonl")[0].read_bytes() == CONTENT
    assert Faulty.done == 3  # what it is, the last piece, what it is now


class Handler(http.server.BaseHTTPRequestHandler):
    """One file with ranges and an ETag; the first pieces are refused, cut off and late."""

    pieces: list[str] = []

    def do_HEAD(self) -> None:
        self._head(200, len(CONTENT))

    def do_GET(self) -> None:
        first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        part = CONTENT[int(first) : int(last) + 1]
        Handler.pieces.append(self.headers["Range"])
        if len(Handler.pieces) == 1:
            self._head(503, 0)
            return
        self._head(206, len(part))
        self.wfile.write(part[: len(part) // 2] if len(Handler.pieces) == 2 else part)

    def _head(self, status: int, size: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(size))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", '"v1"')
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_three_processes_fetch_a_file_once_from_a_server_that_stumbles(cache: Path):
    pytest.importorskip("aiohttp")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/rows.jsonl"
    code = (
        "import sys, hashlib, mt_plugin_datasets.remote as r; r.PIECE = 1024; r.WAITS = (.05,) * 4\n"
        "from mt_core.files import files_of; print(hashlib.sha256(files_of(sys.argv[1])[0].read_bytes()).hexdigest())"
    )
    try:
        running = [
            subprocess.Popen([sys.executable, "-c", code, url], stdout=subprocess.PIPE, text=True) for _ in range(3)
        ]
        said = {each.communicate(timeout=60)[0] for each in running}
    finally:
        server.shutdown()
        server.server_close()
    assert said == {hashlib.sha256(CONTENT).hexdigest() + "\n"}
    assert len(Handler.pieces) == 3 + 2  # three pieces, and the two that went wrong


def test_braces_in_an_address_stand_for_files_that_are_fetched_together(cache: Path, monkeypatch: pytest.MonkeyPatch):
    """A server of files lists none, so that no other pattern helps."""
    storage = fsspec.filesystem("faulty")
    for number in range(3):
        storage.pipe_file(f"/bucket/a-{number:02}.jsonl", CONTENT)
    monkeypatch.setenv("MT_REMOTE_CACHE_GIB", str(2.5 * len(CONTENT) / (1 << 30)))
    with pytest.raises(DataError, match=r"faulty://bucket/a-\{00\.\.02\}\.jsonl needs"):
        files_of("faulty://bucket/a-{00..02}.jsonl", ".jsonl")
    assert not list(cache.rglob("*.jsonl")), "nothing is fetched where not all will fit"
    found = files_of("faulty://bucket/a-{00,02}.jsonl", ".jsonl")
    assert [path.name.partition("-")[2] for path in found] == ["a-00.jsonl", "a-02.jsonl"]
    with pytest.raises(DataError, match=r"/bucket/a-03\.jsonl is refused or not there"):
        files_of("faulty://bucket/a-{00..03}.jsonl", ".jsonl")
    monkeypatch.delenv("MT_REMOTE_CACHE_GIB")
    assert len(files_of("faulty://bucket/a-{01..01}.jsonl", ".jsonl")) == 1, "a range of one number"
    storage.pipe_file("/bucket/{1,2}.jsonl", CONTENT)
    assert len(files_of("faulty://bucket/{1,2}.jsonl", ".jsonl")) == 1, "a file of that name"


def test_paths_are_no_addresses():
    assert not any(map(is_remote, ("rows.jsonl", "/a/b", "C:\\x", "./a:b", "a//b")))
    assert [each.size for each in list_remote("faulty://bucket/rows.jsonl")] == [len(CONTENT)]
