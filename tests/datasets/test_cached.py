"""Rows of each format go through the token cache, encoded by processes of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mt_core.assemble.data import RunData, build_data
from mt_core.data import chunks
from mt_core.plugins.host import PluginHost
from mt_core.plugins.resolve import Resolved, resolve

HOST = PluginHost.discover()


@pytest.mark.timeout(120)
def test_cached_rows_of_each_format_are_those_in_memory_and_are_not_read_again(
    made: tuple[str, Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, path, options = made
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 2)

    def run(cache: str | None) -> RunData:
        keys = {"cache": cache, "workers": 2, "eval": 1, "columns": {} if name == "tokens" else {"text": "response"}}
        raw = {"model": {"name": "llama", "vocab_size": 259}, "data": keys}
        return build_data(resolve({**raw, "dataset": {"name": name, "path": str(path), **options}}, HOST))

    fresh = run(None)  # opens the file in this process before others are forked from it
    made_now = run(str(tmp_path / "tokens"))
    build = Resolved.build
    monkeypatch.setattr(
        Resolved,
        "build",
        lambda self, slot, *given, **more: (
            build(self, slot, *given, **more) if slot != "dataset" else pytest.fail("the source is opened")
        ),
    )
    again = run(str(tmp_path / "tokens"))
    assert len(fresh.train) > 4, "several chunks"
    for other in (made_now, again):
        assert other.train.fingerprint() == fresh.train.fingerprint()
        assert other.train.report == fresh.train.report
        assert other.held_out.report == fresh.held_out.report
