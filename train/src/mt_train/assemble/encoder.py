"""Encodes the splits of a run, or opens them from the token cache."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from os.path import expanduser
from pathlib import Path

from mt_core.config.terminal import drawing_stream
from mt_core.errors import DataError
from mt_core.files import cache_root, is_remote
from mt_core.model_protocols import Objective
from mt_core.protocols import Tokenizer
from mt_core.tracking.logs import notice
from mt_train.assemble.identity import AUTO_BYTES, Files, Identity, identity, source_files, stat_files
from mt_train.assemble.parts import Parts
from mt_train.config.data import DataConfig
from mt_train.data.cache import Open, TokenCache, UnusableCacheError
from mt_train.data.chunks import Progress, Share
from mt_train.data.encoding import Rules, encode, refuse_bad_rows
from mt_train.data.fetched_files import FetchedFiles
from mt_train.data.file_hashes import MEMORY
from mt_train.data.processors import count_processors
from mt_train.data.remote_cache import RemoteCache
from mt_train.data.row_statistics import RowStatistics
from mt_train.data.samples import EncodedSamples
from mt_train.tracking.logs import first_notice

CHUNKS = "chunks"
"""Folder beside the keys: files of caches behind addresses."""

_LINE_SECONDS = 10.0
"""Time between lines of progress where nobody watches."""


class Encoder:
    """Encodes by the rules of one run."""

    def __init__(
        self, parts: Parts, tokenizer: Tokenizer, objective: Objective, rules: Rules, files: Files | None
    ) -> None:
        """``files`` are those that the rows come from (``cached_files``); ``None`` where the tokens stay in memory."""
        self._parts, self._tokenizer, self._objective, self._rules = parts, tokenizer, objective, rules
        self._files = files

    def __call__(self, split: str, source: Open) -> EncodedSamples:
        """The samples of a split (train, held_out, every); ``source`` is opened only where they are not in the cache.

        Raises ``DataError`` for a bad row.
        """
        if self._remote is not None:
            remote, about_rows = self._remote
            found = remote.samples(about_rows.key(split), about_rows.made_of(split))
            refuse_bad_rows(found.report, self._rules)  # whoever made it may have skipped them
            found.reader = self._rules.reader
            return found
        if self._cache is not None:
            cache, about_rows, check = self._cache
            try:
                key, made_of = about_rows.key(split), about_rows.made_of(split)
                found = cache.samples(key, source, self._objective, self._rules, check, made_of=made_of)
                found.reader = self._rules.reader
                return found
            except UnusableCacheError as error:
                if self._parts.config.data.cache != "auto":
                    raise
                first_notice(f"notice: {error}. The tokens stay in memory")
        return encode(*source(), self._objective, self._rules)

    def encode_share(self, split: str, source: Open, share: Share) -> None:
        """Encode a share of the chunks of a split into the cache, which there has to be. Raises ``DataError`` for a bad row."""
        assert self._cache is not None, "who calls has asked for its folder"
        cache, about_rows, check = self._cache
        key, made_of = about_rows.key(split), about_rows.made_of(split)
        cache.encode_share(key, source, self._objective, self._rules, check, made_of=made_of, share=share)

    def finish_shares(self, split: str) -> RowStatistics:
        """Make the cache of a split, all of whose chunks there have to be. Raises ``DataError``."""
        assert self._cache is not None, "who calls has asked for its folder"
        cache, about_rows, _ = self._cache
        return cache.finish_shares(about_rows.key(split), self._rules, made_of=about_rows.made_of(split))

    def folder(self, split: str) -> Path:
        """Return the folder of a split in the token cache, which there has to be."""
        assert self._cache is not None, "who calls has asked for its folder"
        cache, about_rows, _ = self._cache
        return cache.root / about_rows.key(split)

    @cached_property
    def _remote(self) -> tuple[RemoteCache, Identity] | None:
        """The cache behind an address, and what the key is made of; ``None`` for another one. Raises ``DataError``."""
        url = self._parts.config.data.cache
        if url is None or self._files is None or not is_remote(url):
            return None
        root = cache_root()
        fetched = FetchedFiles.of_machine(root / CHUNKS, first_notice)
        about_rows = identity(self._parts, self._tokenizer, self._rules, self._files, root / MEMORY)
        return RemoteCache(url.rstrip("/"), fetched), about_rows

    @cached_property
    def _cache(self) -> tuple[TokenCache, Identity, Callable[[], None]] | None:
        """The cache, what the key is made of, and what checks that it still holds; ``None`` where tokens stay in memory."""
        data, files = self._parts.config.data, self._files
        root = cache_folder(data, files)
        if files is None and data.cache not in (None, "auto"):
            first_notice(f"notice: data.cache is of no use: dataset {self._parts.config.dataset.name!r} names no files")
        if root is None or files is None:
            return None
        before = stat_files(files)
        about_rows = identity(self._parts, self._tokenizer, self._rules, files, root / MEMORY)
        return (
            TokenCache(root, data.workers or count_processors(), first_notice, show_progress),
            about_rows,
            partial(_refuse_changed, before),
        )


def cached_files(parts: Parts) -> Files | None:
    """The files of a run's rows; ``None`` where nobody asks for them, since naming them may take a while, or nobody knows."""
    return None if parts.config.data.cache is None else source_files(parts)


def cache_folder(data: DataConfig, files: Files | None) -> Path | None:
    """Return where the token cache of a run with these source files is; ``None`` where its tokens stay in memory, or are behind an
    address."""
    wish = data.cache
    if wish is None or files is None or is_remote(wish):
        return None
    if wish != "auto":
        return Path(expanduser(wish))
    size = sum(each.st_size for each in stat_files(files).values())
    return cache_root() if size >= AUTO_BYTES else None


def _refuse_changed(stats: Mapping[Path, os.stat_result]) -> None:
    """Raise ``DataError`` when a file is not the one that was hashed."""
    for path, before in stats.items():
        now = path.stat()
        if (now.st_size, now.st_mtime_ns, now.st_ino) != (before.st_size, before.st_mtime_ns, before.st_ino):
            raise DataError(f"{path.absolute()} changed while it was encoded; leave it as it is, and start again")


@contextmanager
def show_progress() -> Iterator[Progress]:
    """Show progress: a bar on a terminal, lines every few seconds elsewhere."""
    if sys.stderr.isatty():
        with _bar() as progress:
            yield progress
        return
    last = time.monotonic()

    def line(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > _LINE_SECONDS and done < total:
            last = time.monotonic()
            notice(f"encoding rows: {100 * done / max(total, 1):.0f}%")

    yield line


@contextmanager
def _bar() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("encoding rows"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(file=drawing_stream(sys.stderr)), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("rows")
        yield lambda done, total: bar.update(task, completed=done, total=total, refresh=True)
