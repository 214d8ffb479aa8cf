"""Runs that are gone on with, or read, from another directory than the one in which they began."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from mt_core.files import cache_root
from mt_tools import evaluate
from mt_train import Outcome, train
from mt_train.assemble.directory import describe_directory, directory_of, path_from, working_in_directory
from mt_train.assemble.places import with_places
from mt_train.checkpoint.manifest import read_manifest
from mt_train.checkpoint.store import find
from mt_train.cli.train import main

RAW = {
    "model": {"name": "llama", "n_layers": 1, "dim": 32, "n_heads": 2, "n_kv_heads": 1, "ffn_dim": 32},
    "dataset": {"name": "jsonl", "path": "rows.jsonl"},
    "data": {"eval": "held.jsonl"},
    "train": {"steps": 1, "sequence_len": 32, "micro_batch_size": 1},
    "eval": {"samples": 0},
}


def _write(folder: Path, name: str, word: str) -> None:
    (folder / name).write_text("".join(f'{{"text": "{word} number {number}"}}\n' for number in range(4)))


@pytest.fixture
def began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the run ``run`` began; beside it ``elsewhere`` has the same rows, and others under the name of the held-out
    ones."""
    for name, word in (("began", "held"), ("elsewhere", "quite another")):
        (tmp_path / name).mkdir()
        _write(tmp_path / name, "rows.jsonl", "row")
        _write(tmp_path / name, "held.jsonl", word)
    monkeypatch.chdir(tmp_path / "began")
    train(RAW, output="run")
    return tmp_path / "began"


def _go_on(run: str | Path, steps: int = 2) -> Outcome:
    return train({"train": {"steps": steps}}, resume=run)


def test_a_run_that_goes_on_from_another_directory_reads_the_files_that_it_began_with(
    began: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree("run", "whole")
    wanted = _go_on("whole").eval_loss
    monkeypatch.chdir("../elsewhere")
    capsys.readouterr()
    outcome = _go_on("../began/run")
    assert outcome.eval_loss == wanted
    assert outcome.output == began / "run"
    assert capsys.readouterr().err.count(f"relative paths of the run start in {began}, where it began") == 1
    assert Path.cwd() == began.parent / "elsewhere", "the caller stays where it was"
    assert main(["--resume", "../began/run", "--train.steps", "3", "--profile", "profile"]) == 0
    assert (began.parent / "elsewhere" / "profile").exists(), (
        "a path of the command itself starts where the command does"
    )
    assert read_manifest(find(began / "run"))["began"]["directory"] == str(began)


def test_relative_paths_of_the_environment_start_where_the_command_does(
    began: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``MT_CACHE=cache`` was another folder in the run than in the command before it."""
    there = began.parent / "elsewhere"
    monkeypatch.chdir(there)
    given = {"MT_CACHE": "cache", "MT_PATHS": "~/paths.yaml", "PYTHONPATH": "plugins:/opt/more", "HF_HOME": "/hub"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    with working_in_directory(began / "run"):
        assert Path.cwd() == began
        assert cache_root() == there / "cache"
        assert os.environ["PYTHONPATH"] == f"{there}/plugins:/opt/more"
        assert (os.environ["MT_PATHS"], os.environ["HF_HOME"]) == ("~/paths.yaml", "/hub")
        assert "HF_HUB_CACHE" not in os.environ
    assert {name: os.environ[name] for name in given} == given


def test_a_run_that_was_taken_elsewhere_reads_what_is_there_and_says_which_rows_are_others(
    began: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = began.parent / "elsewhere"
    shutil.copytree("run", there / "run")
    monkeypatch.chdir(there)
    _go_on("run")
    said = capsys.readouterr().err
    assert f"began in {began}, and its folder was {began / 'run'}; its relative paths start in {there}" in said
    assert "the held-out rows are others than when the checkpoint was saved" in said
    _go_on("run", steps=3)
    assert "began in" not in capsys.readouterr().err, "it is at home here from now on"


def test_a_run_that_is_evaluated_from_another_directory_is_measured_on_its_own_rows(
    began: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (wanted,) = evaluate(run="run")
    monkeypatch.chdir("../elsewhere")
    (found,) = evaluate(run=began / "run")
    assert found["loss"] == wanted["loss"]
    assert f"held.jsonl is the one in {began}, where the run began, and not the one here" in capsys.readouterr().err
    (began / "held.jsonl").unlink()
    (other,) = evaluate(run=began / "run")
    assert other["loss"] != wanted["loss"]


def test_files_of_other_components_are_those_with_which_the_run_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reward's file of the same name in another project scored what ``mt-eval`` was asked for."""
    for place in ("began", "elsewhere"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "reward.py").touch()
    (tmp_path / "code.py").touch()
    monkeypatch.chdir(tmp_path / "elsewhere")
    options = {"path": "reward.py", "function": "reward.py"}
    raw = {
        "rewards": {"python": options, "http": None},
        "evaluations": [{"name": "mc", "rows": [{"path": "../began"}]}],
    }
    raw |= {"callbacks": {"own": {"path": "reward.py"}}, "sampler": {"name": "own", "path": "code.py"}}
    began = tmp_path / "began"
    for _ in range(2):
        found = with_places(raw, began / "run", is_whole=False, directory=began)
        assert found == raw | {
            "rewards": {"python": options | {"path": str(began / "reward.py")}, "http": None},
            "evaluations": [{"name": "mc", "rows": [{"path": str(began / "../began")}]}],
        }
    assert capsys.readouterr().err.count("reward.py is the one in") == 1, "once for all checkpoints of a command"
    assert with_places(raw, began / "run", is_whole=False) == raw, "code is not looked for in folders above the run's"


def test_a_directory_counts_while_it_is_there_and_the_run_is_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = {"began": describe_directory(str(tmp_path), Path("run"))}
    assert directory_of(manifest, tmp_path / "run") == tmp_path
    assert directory_of(manifest, tmp_path / "copy") is None
    assert directory_of({"began": {"directory": str(tmp_path / "gone"), "run": str(tmp_path)}}, tmp_path) is None
    assert directory_of({}, tmp_path) is None
    with working_in_directory(None) as here:
        assert here == Path()
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert directory_of(manifest, tmp_path / "run") is None, "another person's home may be closed"


def test_a_path_behind_a_link_stays_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "began" / "run").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "link").symlink_to(tmp_path / "began" / "run")
    here = tmp_path / "here"
    assert path_from(here, Path("../began/run")) == tmp_path / "began" / "run"
    assert path_from(here, Path("link/../run")).samefile(tmp_path / "began" / "run")
    assert path_from(here, tmp_path / "began") == tmp_path / "began"
    assert path_from(Path(), Path("./runs/../runs/a")) == Path("runs/a")
