"""Time and bytes of the first batch from a token cache behind an address, beside fetching the cache whole.

    python benchmarks/remote_cache.py [--chunks 50] [--latency 0.1] [--batch 8]

A storage in memory answers each question after ``--latency`` seconds. Chunks have 2,048 samples of 512 tokens.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
from fsspec.implementations.memory import MemoryFileSystem

from mt_core import Sample
from mt_train.data.cache import TokenCache
from mt_train.data.encoding import Rules
from mt_train.data.fetched_files import GIB, FetchedFiles
from mt_train.data.remote_cache import RemoteCache, files_there, put_cache

TOKENS, ROWS = 512, 2048
URL = "late://bucket/tokens"


class Late(MemoryFileSystem):  # type: ignore[misc]
    """A storage that answers late, and counts what it sends."""

    protocol = ("late",)
    cachable = False
    seconds, asked, sent = 0.0, 0, 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("late://", "memory://")))

    def info(self, path: str, **rest: Any) -> Any:
        self._wait()
        info = super().info(path, **rest)
        return info if info["type"] == "directory" else {**info, "ETag": info["name"]}

    def find(self, path: str, **rest: Any) -> Any:
        self._wait()
        found = MemoryFileSystem().find(path, **rest)
        return {name: {**info, "ETag": info["name"]} for name, info in found.items()}  # as S3 lists

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **rest: Any) -> bytes:
        self._wait()
        content: bytes = MemoryFileSystem().cat_file(path, start=start, end=end, **rest)
        Late.sent += len(content)
        return content

    def _wait(self) -> None:
        Late.asked += 1
        time.sleep(Late.seconds)


class Rows:
    """Rows whose text is their number."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def row(self, index: int) -> dict[str, Any]:
        """A row."""
        return {"id": f"rows:{index}", "n": index}


class Count:
    """Samples of ``TOKENS`` tokens."""

    def encode(self, row: Any) -> Sample:
        """The sample of a row."""
        return Sample(range(row["n"], row["n"] + TOKENS), [True] * TOKENS, row["id"])


def measure(name: str, deed: Callable[[], Any]) -> Any:
    """Print what a deed takes."""
    Late.asked = Late.sent = 0
    start, used = time.perf_counter(), time.process_time()
    result = deed()
    seconds, cpu = time.perf_counter() - start, time.process_time() - used
    print(f"{name:32} {seconds:6.2f} s  {cpu:5.2f} CPU-s  {Late.sent / 1e6:7.1f} MB  {Late.asked:4} questions")
    return result


def main() -> None:
    """Make the cache, and read it both ways."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--chunks", type=int, default=50)
    parser.add_argument("--latency", type=float, default=0.1)
    parser.add_argument("--batch", type=int, default=8)
    asked = parser.parse_args()
    fsspec.register_implementation("late", Late, clobber=True)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        cache = TokenCache(root, 1, print, lambda: nullcontext(lambda done, total: None))
        rows = Rows(asked.chunks * ROWS)
        cache.samples("key", lambda: (rows, range(len(rows))), Count(), Rules(max_len=TOKENS, truncation="error"))  # type: ignore[arg-type]
        put_cache(root / "key", f"{URL}/key", print)
        Late.seconds = asked.latency
        numbers = np.random.Generator(np.random.PCG64(0)).permutation(len(rows))[: asked.batch]

        def open_cache(place: str) -> Any:
            return RemoteCache(URL, FetchedFiles(root / place, GIB, lambda text: None)).samples("key", {})

        def batch(samples: Any) -> Any:
            return samples.gather(numbers, samples.lengths_of(numbers))

        samples = measure("open", lambda: open_cache("a"))
        first = measure(f"first batch of {asked.batch}", lambda: batch(samples))
        measure("the same again", lambda: batch(samples))
        alone = open_cache("b")
        measure("sample by sample", lambda: [alone[int(number)] for number in numbers])
        whole = open_cache("c")
        wanted = [part.chunk.wanted for part in whole.column("ids").parts]
        second = measure("all chunks, then the batch", lambda: batch(_fetch_all(root / "c", wanted, whole)))
        assert np.array_equal(first[0], second[0])
        print(f"{len(files_there(f'{URL}/key'))} files")


def _fetch_all(place: Path, wanted: Any, samples: Any) -> Any:
    FetchedFiles(place, GIB, print).prepare(wanted)
    return samples


if __name__ == "__main__":
    main()
