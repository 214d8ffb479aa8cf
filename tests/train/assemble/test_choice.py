"""Which checkpoint is meant: the message says what is there, and what to give."""

from __future__ import annotations

from pathlib import Path

import pytest

from mt_core import CheckpointError, UsageError
from mt_tools.cli.checkpoint import main as checkpoint_command
from mt_tools.cli.eval import _output, _write
from mt_train.assemble.choice import chosen_checkpoints
from mt_train.config.commandline import CommandLine


@pytest.mark.parametrize("which", ["last", "best", "all", "3"])
def test_a_folder_that_is_not_there_is_told_from_one_without_checkpoints(tmp_path: Path, which: str) -> None:
    with pytest.raises(CheckpointError, match="nowhere does not exist; give a run's folder"):
        chosen_checkpoints(tmp_path / "nowhere", which)
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        chosen_checkpoints(tmp_path, which)


def test_pruning_what_is_no_run_leaves_nothing_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checkpoint_command(["prune", str(tmp_path)]) == 1
    expected = "holds no checkpoint (no manifest.json and no checkpoints/step-…); give a run's folder"
    assert expected in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("below", ["", "figures/of-today"])
def test_an_evaluation_sees_before_it_begins_that_its_output_is_a_file(tmp_path: Path, below: str) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"notes\.txt is a file; name another"):
        _output(CommandLine(flags={"output": str(tmp_path / "notes.txt" / below)}))


def test_what_an_evaluation_writes_goes_through_no_link(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval/predictions.jsonl").symlink_to(tmp_path / "mine")
    _write(tmp_path / "eval", [], [{"id": "a"}], wanted=True)
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "eval/predictions.jsonl").read_text() == '{"id": "a"}\n'
    (tmp_path / "eval/metrics.json").unlink()
    (tmp_path / "eval/metrics.json").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="holds the metrics of an earlier evaluation"):
        _output(CommandLine(flags={"output": str(tmp_path / "eval")}))
