"""Options that stand for files, wherever these lie, and files of which the key of the token cache is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from mt_core import MtConfig
from mt_train.assemble.places import with_places
from mt_train.assemble.portable_names import files_in_options, stands_for_rows, without_places


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


class Options(MtConfig):
    path: str


def test_the_checkpoints_of_a_run_are_no_files_that_tokens_follow_from(tmp_path: Path) -> None:
    """They may be terabytes. Of any other folder every file counts, whatever its folders are called."""
    for name in ("tokenizer.json", "checkpoints/step-00000001/model/model-00001.safetensors"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("content")

    def named() -> list[str]:
        return [name for name, _ in files_in_options(Options(path=str(tmp_path)))]

    assert named() == ["checkpoints/step-00000001/model/model-00001.safetensors", "tokenizer.json"]
    (tmp_path / "run.yaml").write_text("")
    assert named() == ["run.yaml", "tokenizer.json"]
