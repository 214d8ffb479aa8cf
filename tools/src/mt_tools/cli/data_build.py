"""``mt-data build``: the token cache of a run, made without an accelerator and before anybody waits for it."""

from __future__ import annotations

from mt_core.errors import UsageError
from mt_train.assemble.encoder import cache_folder
from mt_train.assemble.identity import AUTO_BYTES, source_files
from mt_train.assemble.parts import Parts
from mt_train.tracking.logs import show


def build_cache(parts: Parts) -> int:
    """Encode the rows of a run into its token cache. Raises ``UsageError`` when it would have none."""
    config, files = parts.config, source_files(parts)
    if files is None:
        raise UsageError(
            f"dataset {config.dataset.name!r} names no files, so that nobody could tell when its rows change: its tokens are not"
            " cached. Choose a dataset of files, such as jsonl"
        )
    folder = cache_folder(config.data, files)
    if folder is None:
        raise UsageError(
            f"this run would keep its tokens in memory: data.cache is {config.data.cache or 'none'}, and auto caches"
            f" files of {AUTO_BYTES / 1e6:.0f} MB or more; name a folder with --data.cache FOLDER, here and for mt-train"
        )
    from mt_train.assemble.data import build_data  # torch loads from here on

    data = build_data(parts)
    show(f"training   {data.train.report.describe()}")
    show(f"held out   {data.held_out.report.describe()}")
    show(f"cache      {folder.absolute()}")
    return 0
