"""Copies elsewhere: whole checkpoints, the manifest last, and a storage that fails never ends a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from mt_core import MtError
from mt_train.checkpoint.store import verify


def away(runs: Any) -> dict[str, Any]:
    return {"upload": {"url": f"file://{runs.folder}/elsewhere"}}


def test_checkpoints_and_figures_arrive_whole(runs: Any) -> None:
    run = runs.train("run", callbacks=away(runs))
    there = runs.folder / "elsewhere/run"
    for step in (3, 6):
        verify(there / f"checkpoints/step-{step:08d}")
    assert (there / "metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()
    assert (there / "run.yaml").exists()


def test_a_storage_that_fails_is_said_and_caught_up_with(
    runs: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It fails in the middle of the first checkpoint."""
    put, copied = LocalFileSystem.put_file, []

    def failing(self: Any, source: str, place: str, **options: Any) -> None:
        copied.append(Path(place))
        if len(copied) == 3:
            raise ConnectionError("no route")
        put(self, source, place, **options)

    monkeypatch.setattr(LocalFileSystem, "put_file", failing)
    runs.train("run", callbacks=away(runs))
    assert "upload: warning: file://" in (said := capsys.readouterr().err)
    assert said.count("ConnectionError: no route") == 1
    there = runs.folder / "elsewhere/run/checkpoints"
    for name in ("step-00000003", "step-00000006"):
        verify(there / name)
        assert [path.name for path in copied if path.parent == there / name][-1] == "manifest.json"


def test_an_address_without_a_file_system_is_said_before_the_first_step(runs: Any) -> None:
    with pytest.raises(MtError, match="cannot use nowhere://bucket: Protocol not known"):
        runs.train("run", callbacks={"upload": {"url": "nowhere://bucket"}})
