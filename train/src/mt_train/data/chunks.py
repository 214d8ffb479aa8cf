"""Rows encoded in chunks by several processes, also of several machines, each chunk a file: what was done before a kill is not
done again.

The chunks depend on the rows alone, so that any number of processes leaves the same bytes. Each chunk is encoded by who has
its lease (``leases.py``).
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from mt_core.errors import DataError, refuse_exit
from mt_core.model_protocols import Objective
from mt_core.protocols import Dataset
from mt_train.data.chunk_files import read_chunk, write_chunk
from mt_train.data.encoding import Rules, encode
from mt_train.data.leases import hold_lease
from mt_train.data.media.named_files import find_changed

CHUNK_ROWS, MOST_CHUNKS = 2048, 4096
"""Rows of a chunk: enough that writing it costs nothing, few enough that a kill loses little. Of more than 8 million rows a chunk
has more, so that there are not more files than a folder and a process like."""

_DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of prctl(2)."""

Progress = Callable[[int, int], None]
"""Told of chunks that are done, and how many there are."""

_ASK_SECONDS = 0.2
"""Time between two questions whether a chunk that another process encodes is there."""


@dataclass(frozen=True)
class Share:
    """The chunks of one of several builders: those whose number is ``index`` modulo ``count``."""

    index: int = 0
    count: int = 1


def chunk_name(number: int) -> str:
    """Return the name of the file of a chunk."""
    return f"chunk-{number:06}"


def is_chunk(name: str) -> bool:
    """Return whether a file of this name is a chunk."""
    return re.fullmatch(r"chunk-\d{6,}", name) is not None


@dataclass(frozen=True)
class Work:
    """Rows to be encoded into files of ``folder``."""

    dataset: Dataset
    indices: Sequence[int] | NDArray[Any]
    objective: Objective
    rules: Rules
    folder: Path

    def __len__(self) -> int:
        return -(-len(self.indices) // self.rows)

    @property
    def rows(self) -> int:
        """Count the rows of a chunk: 2,048 times a power of two, which follows from the number of all rows."""
        times = -(-len(self.indices) // (CHUNK_ROWS * MOST_CHUNKS))
        return CHUNK_ROWS * (1 << max(times - 1, 0).bit_length())

    def path(self, number: int) -> Path:
        """The file of a chunk."""
        return self.folder / chunk_name(number)

    def is_done(self, number: int) -> bool:
        """Return whether a chunk is there that these rules would make now: another run may have skipped bad rows that are an error here."""
        chunk = read_chunk(self.path(number))
        if chunk is None or find_changed(chunk.report.named_files):
            return False
        return not (chunk.report.bad_rows and self.rules.on_bad_row == "error")

    def do(self, number: int) -> bool:
        """Encode one chunk, unless another process does; return whether it is there. Raises ``DataError`` for a bad row."""
        path, indices = self.path(number), self.indices[number * self.rows : (number + 1) * self.rows]
        with hold_lease(path.with_name(f"{path.name}.lease")) as is_ours:
            if is_ours and not self.is_done(number):  # another one may have been faster since the chunks were counted
                write_chunk(path, encode(self.dataset, indices, self.objective, self.rules))
        return is_ours


def encode_chunks(work: Work, *, workers: int, progress: Progress, share: Share | None = None) -> None:
    """Encode what is not there yet, of all chunks or a share of them, and wait for those that others encode.

    Raises ``DataError`` for the first bad row, in their order.
    """
    share = share or Share()
    own = range(share.index, len(work), share.count)
    missing = [number for number in own if not work.is_done(number)]
    progress(len(own) - len(missing), len(own))
    while missing:
        done = len(own) - len(missing)
        leased = []
        for number, is_there in zip(missing, _each(work, missing, workers), strict=True):
            done += is_there
            leased += [] if is_there else [number]
            progress(done, len(own))
        if leased:
            time.sleep(_ASK_SECONDS)
        missing = [number for number in leased if not work.is_done(number)]


def _each(work: Work, numbers: Sequence[int], workers: int) -> Iterator[bool]:
    workers = min(workers, len(numbers))
    if workers < 2 or not can_fork():
        for number in numbers:
            yield work.do(number)
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


def _do(number: int) -> bool:
    assert _work is not None, "_begin ran first"
    try:
        return _work.do(number)
    except SystemExit as error:  # its traceback, which says whose it is, does not leave this process
        refuse_exit(error)
