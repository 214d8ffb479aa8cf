"""``mt-data build``: the token cache of a run, made without an accelerator and before anybody waits for it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from mt_core.assemble.discovery import discovered
from mt_core.cli.guard import guarded
from mt_core.config.commandline import merge, parse
from mt_core.config.files import read_config
from mt_core.errors import UsageError
from mt_core.plugins.resolve import Resolved, resolve
from mt_core.tracking.logs import show

SWITCHES, VALUES, REPEATED = ("debug",), ("config",), ("block_plugin",)


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m mt_core.cli.data_build``: the keys of a run, as ``mt-train`` takes them."""
    words = list(sys.argv[1:] if argv is None else argv)
    return guarded(lambda: _build(words), debug="--debug" in words)


def _build(words: list[str]) -> int:
    line = parse(words, switches=SWITCHES, values=VALUES, repeated=REPEATED)
    stored = read_config(Path(line.flags["config"])) if "config" in line.flags else {}
    return build_cache(resolve(merge(stored, line.raw), discovered(line.flags.get("block_plugin", []))))


def build_cache(resolved: Resolved) -> int:
    """Encode the rows of a run into its token cache. Raises ``UsageError`` when it would have none."""
    from mt_core.assemble.encoder import cache_folder

    folder = cache_folder(resolved)
    if folder is None:
        raise UsageError(
            f"this run would keep its tokens in memory: data.cache is {resolved.config.data.cache or 'none'}, and auto caches"
            " files of 50 MB or more; name a folder with --data.cache FOLDER, here and for mt-train"
        )
    from mt_core.assemble.data import build_data  # torch loads from here on

    data = build_data(resolved)
    show(f"training   {data.train.report.describe()}")
    show(f"held out   {data.held_out.report.describe()}")
    show(f"cache      {folder.absolute()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
