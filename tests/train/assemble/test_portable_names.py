"""Options of a dataset that stand for files, wherever these lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from mt_train.assemble.places import with_places
from mt_train.assemble.portable_names import stands_for_rows, without_places


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, and beside it one with two files, where a run began."""
    (tmp_path / "begun").mkdir()
    (tmp_path / "here").mkdir()
    for name in ("a-00.tar", "a-01.tar"):
        (tmp_path / "begun" / name).write_bytes(b"")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "begun"


@pytest.mark.parametrize("pattern", ["a-00.tar", "a-*.tar", "a-{00..01}.tar", "{a,b}-00.tar"])
def test_a_pattern_of_files_is_found_where_the_run_began_and_its_place_is_no_part_of_a_key(
    pattern: str, folder: Path
) -> None:
    raw = {"dataset": {"name": "webdataset", "path": pattern}}
    assert with_places(raw, folder, is_whole=True, directory=folder)["dataset"]["path"] == str(folder / pattern)
    assert without_places({"path": str(folder / pattern)}, stands_for_rows) == {"path": "files"}


@pytest.mark.parametrize("text", ["{text}", "<image> {text}", "c-{00..01}.tar", "", "a\0{b,c}"])
def test_other_texts_stand_for_no_files(text: str, folder: Path) -> None:
    assert not stands_for_rows(str(folder / text) if text.endswith(".tar") else text)
