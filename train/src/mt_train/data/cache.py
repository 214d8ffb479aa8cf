"""The token cache: encoded rows in files, in a folder whose name is a hash of everything that they follow from.

The folder (``cache_folder.py``) is called ``KEY.building`` while it is made: chunks are encoded there by one process, or by many on
several machines (``Share``), and stay as they are; an index of them is all that is written in the end. Each chunk has a lease
(``leases.py``). ``KEY.lock`` is held alone by a process that encodes all of it and finishes, and shared by those that encode a share
or read (``locks.py``). A kill loses a chunk. All files are read once, when a process begins to use the rows, and chunks that are not
what was written are encoded anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from mt_core.errors import DataError
from mt_core.model_protocols import Objective
from mt_core.protocols import Dataset
from mt_train.data.cache_folder import (
    DamagedCacheError,
    OutdatedCacheError,
    building_of,
    discard,
    finish,
    is_complete,
    open_samples,
    use,
    write_plan,
)
from mt_train.data.chunks import Progress, Share, Work, encode_chunks
from mt_train.data.encoding import Rules, refuse_bad_rows
from mt_train.data.locks import hold_lock, lock_of
from mt_train.data.row_statistics import RowStatistics
from mt_train.data.samples import EncodedSamples


class UnusableCacheError(DataError):
    """A folder that cannot be written, or knows no locks."""


Open = Callable[[], tuple[Dataset, Sequence[int] | NDArray[Any]]]
"""Opens a source: its rows, and the indices of those that are wanted."""


@dataclass(frozen=True)
class TokenCache:
    """A folder of encoded splits. ``say`` tells a person what takes long; ``progress`` shows how far it is."""

    root: Path
    workers: int
    say: Callable[[str], None]
    progress: Callable[[], AbstractContextManager[Progress]]

    def samples(
        self,
        key: str,
        source: Open,
        objective: Objective,
        rules: Rules,
        check: Callable[[], None] = lambda: None,
        *,
        made_of: Mapping[str, str] | None = None,
    ) -> EncodedSamples:
        """The split of this key, made where it is not there; ``check`` is called before what was made is kept.

        ``made_of`` has hashes of what the key is a hash of. Raises ``DataError`` for a bad row, ``UnusableCacheError`` for a folder that
        cannot be used.
        """
        folder = self.root / key
        with self._named():
            while (samples := self._use(folder)) is None:
                self.root.mkdir(parents=True, exist_ok=True)
                with hold_lock(lock_of(folder), self.say, is_done=partial(is_complete, folder)) as is_ours:
                    if is_ours and not is_complete(folder):
                        self._encode(folder, source, objective, rules, made_of or {}, Share())
                        check()
                        finish(folder, rules, made_of or {})
        refuse_bad_rows(samples.report, rules)  # whoever made it may have skipped them
        return samples

    def encode_share(
        self,
        key: str,
        source: Open,
        objective: Objective,
        rules: Rules,
        check: Callable[[], None] = lambda: None,
        *,
        made_of: Mapping[str, str],
        share: Share,
    ) -> None:
        """Encode a share of the chunks of this key, beside others that encode theirs. Raises as ``samples`` does."""
        folder = self.root / key
        with self._named():
            self.root.mkdir(parents=True, exist_ok=True)
            with hold_lock(lock_of(folder), self.say, shared=True):
                if not is_complete(folder):
                    self._encode(folder, source, objective, rules, made_of, share)
                    check()

    def finish_shares(self, key: str, rules: Rules, *, made_of: Mapping[str, str]) -> RowStatistics:
        """Make the split of this key of the chunks that others have encoded, and return what became of the rows; no token is read.

        Raises ``DataError`` where chunks are missing.
        """
        folder = self.root / key
        with self._named():
            self.root.mkdir(parents=True, exist_ok=True)
            with hold_lock(lock_of(folder), self.say, is_done=partial(is_complete, folder)):
                return open_samples(folder).report if is_complete(folder) else finish(folder, rules, made_of)

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UnusableCacheError(
                f"the token cache {self.root} cannot be written: {error.strerror or error}. Choose another folder with"
                " --data.cache FOLDER (or MT_CACHE), or keep tokens in memory: --data.cache none"
            ) from error

    def _use(self, folder: Path) -> EncodedSamples | None:
        """The split, if it is there; one that is damaged or outdated is told, and what it has that is not is kept to be finished."""
        try:
            return use(folder)
        except (DamagedCacheError, OutdatedCacheError) as error:
            kind = "warning" if isinstance(error, DamagedCacheError) else "notice"
            self.say(f"{kind}: {error}; its rows are encoded anew")
            discard(folder)
            return None

    def _encode(
        self,
        folder: Path,
        source: Open,
        objective: Objective,
        rules: Rules,
        made_of: Mapping[str, str],
        share: Share,
    ) -> None:
        dataset, indices = source()
        building = building_of(folder)
        building.mkdir(exist_ok=True)
        work = Work(dataset, indices, objective, rules, building)
        write_plan(building, len(work), made_of)
        with self.progress() as progress:
            encode_chunks(work, workers=self.workers, progress=progress, share=share)
