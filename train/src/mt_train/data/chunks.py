"""Rows encoded in chunks by several processes, each chunk a file: what was done before a kill is not done again.

The chunks depend on the rows alone, so that any number of processes leaves the same bytes.
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import json
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mt_core.errors import DataError, refuse_exit
from mt_core.model_protocols import Objective
from mt_core.protocols import Dataset
from mt_train.data.columns import is_column
from mt_train.data.encoding import Rules, encode
from mt_train.data.media.named_files import find_changed
from mt_train.data.row_statistics import RowStatistics
from mt_train.data.samples import EncodedSamples

CHUNK_ROWS = 2048
"""Rows of a chunk: enough that writing it costs nothing, few enough that a kill loses little."""

_DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of prctl(2)."""

Progress = Callable[[int, int], None]
"""Told of chunks that are done, and how many there are."""

_DIGEST = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Work:
    """Rows to be encoded into files of ``folder``."""

    dataset: Dataset
    indices: Sequence[int] | NDArray[Any]
    objective: Objective
    rules: Rules
    folder: Path

    def __len__(self) -> int:
        return -(-len(self.indices) // CHUNK_ROWS)

    def path(self, number: int) -> Path:
        """The file of a chunk."""
        return self.folder / f"chunk-{number:06}.npz"

    def is_done(self, number: int) -> bool:
        """Return whether a chunk is there that these rules would make now: another run may have skipped bad rows that are an error here."""
        chunk = read_chunk(self.path(number))
        if chunk is None or find_changed(chunk.report.named_files):
            return False
        return not (chunk.report.bad_rows and self.rules.on_bad_row == "error")

    def do(self, number: int) -> None:
        """Encode one chunk. Raises ``DataError`` for a bad row."""
        indices = self.indices[number * CHUNK_ROWS : (number + 1) * CHUNK_ROWS]
        write_chunk(self.path(number), encode(self.dataset, indices, self.objective, self.rules))


def write_chunk(path: Path, samples: EncodedSamples) -> None:
    """The samples as a file that is whole or not there: the SHA-256 of all that follows it, and an archive of arrays."""
    staged = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    assert samples.report.hashes is not None, "encode() made them"
    report = np.frombuffer(json.dumps(samples.report.as_dict()).encode(), dtype=np.uint8)
    archive = io.BytesIO()
    np.savez(archive, allow_pickle=False, report=report, hashes=samples.report.hashes, **samples.columns)
    with staged.open("wb") as file:
        file.write(hashlib.sha256(archive.getbuffer()).digest())
        file.write(archive.getbuffer())
    staged.replace(path)


def read_chunk(path: Path) -> EncodedSamples | None:
    """Read what ``write_chunk`` wrote; nothing where there is no such file, or its hash says that it is damaged."""
    try:
        content = memoryview(path.read_bytes())
    except FileNotFoundError:
        return None
    digest, archive = content[:_DIGEST], content[_DIGEST:]
    if hashlib.sha256(archive).digest() != digest:
        return None
    with np.load(io.BytesIO(archive), allow_pickle=False) as stored:
        columns = {name: stored[name] for name in stored.files if is_column(name)}
        report = RowStatistics.from_dict(json.loads(stored["report"].tobytes()))
        report.hashes = stored["hashes"]
    return EncodedSamples(columns, report)


def encode_chunks(work: Work, *, workers: int, progress: Progress) -> None:
    """Encode what is not there yet. Raises ``DataError`` for the first bad row, in their order."""
    missing = [number for number in range(len(work)) if not work.is_done(number)]
    done = len(work) - len(missing)
    progress(done, len(work))
    for finished, _ in enumerate(_each(work, missing, workers), start=done + 1):
        progress(finished, len(work))


def _each(work: Work, numbers: Sequence[int], workers: int) -> Iterator[None]:
    workers = min(workers, len(numbers))
    if workers < 2 or not can_fork():
        for number in numbers:
            work.do(number)
            yield
        return
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(work, os.getpid())) as pool:
        try:
            yield from pool.map(_do, numbers)
        except BrokenProcessPool as error:
            raise DataError(
                "a process that encodes rows was killed, most likely for want of memory; set a smaller --data.workers and"
                " start again: what is encoded is kept"
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def can_fork() -> bool:
    """Return whether a copy of this process may encode: a lock that another thread holds would stay locked in it for good.

    Threads of native libraries do not matter, since rows are encoded without torch.
    """
    return sys.platform == "linux" and threading.active_count() == 1


_work: Work | None = None
"""In a process that encodes: what it works on. Nothing of it has to be pickled, as the process is a copy."""


def _begin(work: Work, parent: int) -> None:
    global _work
    _work = work
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)  # it would keep the parent's lock, and wait for ever
    if os.getppid() != parent:
        os._exit(1)
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGUSR1,
        signal.SIGHUP,
    ):  # the parent's handlers are for itself
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _do(number: int) -> None:
    assert _work is not None, "_begin ran first"
    try:
        _work.do(number)
    except SystemExit as error:  # its traceback, which says whose it is, does not leave this process
        refuse_exit(error)
