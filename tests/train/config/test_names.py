"""Names for paths, and configs in two formats."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mt_core.errors import UsageError
from mt_tools.cli.checkpoint import main as checkpoint
from mt_tools.cli.eval import main as evaluate
from mt_tools.cli.generate import main as generate
from mt_tools.cli.report import main as report
from mt_train.cli.train import main
from mt_train.config.files import read_config
from mt_train.config.names import expand


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "paths.yaml"
    path.write_text(f"data: {tmp_path}/rows\nhome-folder: ~/x\nwrong: 3\n")
    monkeypatch.setenv("MT_PATHS", str(path))
    return path


def test_names_are_replaced_wherever_they_stand(names: Path) -> None:
    rows = str(names.parent / "rows")
    raw = {"dataset": {"path": "@data/a.jsonl"}, "list": ["@data", "@@data", "a@data", "@home-folder"], "n": 3}
    expanded = expand(raw)
    assert expanded["dataset"] == {"path": f"{rows}/a.jsonl"}
    assert expanded["list"] == [rows, "@data", "a@data", str(Path.home() / "x")]
    assert expanded["n"] == 3


def test_an_unknown_name_lists_the_known_ones(names: Path) -> None:
    with pytest.raises(
        UsageError, match=r"no path is named @dta in .*Did you mean 'data'\? Known: @data, @home_folder"
    ):
        expand("@dta")
    with pytest.raises(UsageError, match="wrong is 3; a path is text"):
        expand("@wrong")


def test_without_a_file_of_names_the_message_says_where_to_write_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MT_PATHS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UsageError, match=r"write 'NAME: /some/folder' into .*/\.config/mt/paths\.yaml"):
        expand("@data")


def test_a_run_uses_names_for_its_rows_and_its_folder(
    names: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "a.jsonl").write_text("".join(json.dumps({"text": f"row {i}"}) + "\n" for i in range(40)))
    words = ["--model", "llama", "--dataset", "jsonl", "--dataset.path", "@data/a.jsonl", "--train.steps", "1"]
    assert main([*words, "--output", "@data/run"]) == 0
    assert read_config(tmp_path / "rows" / "run" / "run.yaml")["dataset"]["path"] == f"{tmp_path}/rows/a.jsonl"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (main, ["--config", "@dta/run.yaml"]),
        (main, ["--model", "llama", "--output", "@dta/run"]),
        (generate, ["--run", "@dta/run", "--prompt", "x"]),
        (generate, ["--model", "llama", "--weights", "@dta/w", "--prompt", "x"]),
        (evaluate, ["--run", "@dta/run"]),
        (checkpoint, ["list", "@dta/run"]),
        (report, ["@dta/run"]),
        (report, ["@data", "--output", "@dta/page.html"]),
    ],
)
def test_every_command_knows_names_and_tells_of_an_unknown_one(
    command: Callable[[list[str]], int], words: list[str], names: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (names.parent / "rows").mkdir()
    (names.parent / "rows" / "run.yaml").write_text("model: llama\n")
    assert command(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: no path is named @dta")
    assert "Traceback" not in error


def test_json_and_yaml_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"train": {"clip-norm": 2e-4, "steps": 3}}')
    (tmp_path / "a.yaml").write_text("train: {clip-norm: 0.0002, steps: 3}\n")
    assert (
        read_config(tmp_path / "a.json")
        == read_config(tmp_path / "a.yaml")
        == {"train": {"clip_norm": 2e-4, "steps": 3}}
    )
