"""A run that is read from elsewhere, or whose first weights are gone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mt_core import WeightsError
from mt_tools import generate
from mt_tools.cli.convert import main as convert
from mt_tools.cli.eval import main as evaluate
from mt_train import load_run, train
from mt_train.assemble import places
from mt_train.assemble.places import with_places

SMALL = {"steps": 2, "micro_batch_size": 1, "sequence_len": 32}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with weights in ``base``, and two runs over them that name them by a relative path."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    data = {"eval": 1, "read_rows": 8}
    train({"model": {"name": "llama", "n_layers": 1}, "train": SMALL, "data": data}, output="first")
    assert convert(["first", "base"]) == 0
    raw = {"model": {"weights": "base"}, "train": SMALL, "data": data}
    train(raw, output="runs/full")
    train({**raw, "adapter": "lora"}, output="runs/lora")
    return folder


def test_relative_paths_are_found_from_the_runs_folder(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = {name: generate(load_run(f"runs/{name}"), "The ", greedy=True)[0] for name in ("full", "lora")}
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    there = {name: generate(load_run(project / "runs" / name), "The ", greedy=True)[0] for name in here}
    assert there == here
    assert evaluate(["--run", str(project / "runs" / "lora"), "--output", "none"]) == 0


def test_a_run_whose_checkpoint_has_all_weights_is_read_without_those_it_began_with(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--run", "runs/full", "--tokenizer.name", "byte", "--output", "none"]
    assert evaluate(words) == 0
    before = capsys.readouterr().out
    shutil.move("base", "away")
    assert evaluate(words) == 0
    said = capsys.readouterr()
    assert said.out == before
    assert "base, with which the run began, is gone; its checkpoint has all weights" in said.err
    assert evaluate(["--run", "runs/lora", *words[2:]]) != 0
    assert "base does not exist" in capsys.readouterr().err, "the adapter's run has none of its own"


def test_a_path_that_looks_like_a_name_of_the_hub_is_gone_where_the_hub_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nowhere(weights: str) -> Path:
        raise WeightsError(f"{weights} could not be fetched")

    monkeypatch.setattr(places, "locate", nowhere)
    raw = {"model": {"name": "llama", "weights": "models/base"}}
    assert "weights" not in with_places(raw, tmp_path, is_whole=True)["model"]
    assert "models/base, with which the run began, is gone" in capsys.readouterr().err
    assert with_places(raw, tmp_path, is_whole=False) == raw


def test_every_path_that_a_run_is_made_of_is_found_from_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    raw = {"model": {"name": "llama", "overlay": "more", "adapters": ["more", "gone"]}, "adapter": {"weights": "more"}}
    found = with_places(raw, tmp_path / "run", is_whole=False)
    there = str(tmp_path / "more")
    assert found["model"] == {"name": "llama", "overlay": there, "adapters": [there, "gone"]}
    assert found["adapter"]["weights"] == there


@pytest.mark.parametrize(
    ("weights", "found"),
    [("org/name", "org/name"), ("/nowhere/base", None), ("gone", None), ("\0", None), (None, None), (3, 3)],
)
def test_what_is_nowhere_is_left_out_and_names_of_the_hub_stay(
    weights: object, found: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "locate", Path)
    raw = with_places({"model": {"name": "llama", "weights": weights}}, tmp_path, is_whole=True)
    assert raw["model"].get("weights") == found
    kept = with_places({"model": {"name": "llama", "weights": weights}}, tmp_path, is_whole=False)
    assert kept["model"]["weights"] == weights


def test_weights_of_encoders_are_found_from_the_runs_folder_and_go_with_the_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sound").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    encoders = [{"name": "hf-audio", "weights": "sound"}, {"name": "clip", "weights": "model"}, {"name": "drawn"}]
    raw = {"model": {"name": "llama", "weights": "/nowhere/base"}, "encoders": encoders}
    audio = {"name": "hf-audio", "weights": str(tmp_path / "sound")}
    found = with_places(raw, tmp_path / "run", is_whole=False)
    assert found["encoders"] == [audio, encoders[1], encoders[2]]
    found = with_places(raw, tmp_path / "run", is_whole=True)
    assert found["encoders"] == [audio, {"name": "clip"}, encoders[2]], "the checkpoint has those of the model's folder"
