"""The frozen weights that a resumed run stands on are those that it was started with, whatever happened to their files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from mt_core import CheckpointError
from mt_tools.cli.convert import main as convert
from mt_tools.cli.generate import main as mt_generate
from mt_train import load_config, train
from mt_train.assemble.callbacks import Events

SMALL = {"steps": 2, "micro_batch_size": 1, "sequence_len": 32}
DATA = {"eval": "none", "read_rows": 8, "cache": "none"}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with weights in ``base``, and one tensor of them in ``more/model.safetensors``."""
    monkeypatch.chdir(tmp_path)
    train({"model": {"name": "llama", "n_layers": 1}, "train": SMALL, "data": DATA}, output="first")
    assert convert(["first", "base"]) == 0
    name, tensor = next(iter(load_file("base/model.safetensors").items()))
    Path("more").mkdir()
    save_file({name: tensor.clone()}, "more/model.safetensors")
    return tmp_path


def config(**model: Any) -> dict[str, Any]:
    return {"model": {"weights": "base", **model}, "adapter": "lora", "train": SMALL, "data": DATA}


def change_base() -> None:
    """Write other values into the weights, as a new file of the same name."""
    tensors = {name: tensor + 1 for name, tensor in load_file("base/model.safetensors").items()}
    save_file(tensors, "base/new", metadata={"format": "pt"})
    Path("base/new").replace("base/model.safetensors")


def test_an_overlay_whose_file_is_called_as_one_of_the_weights_hides_no_change_of_these(project: Path) -> None:
    train(config(overlay="more/model.safetensors"), output="run")
    base = json.loads(Path("run/checkpoints/step-00000002/manifest.json").read_text())["base"]
    assert set(base) == {"model.safetensors", "overlay/model.safetensors"}
    change_base()
    with pytest.raises(CheckpointError, match=r"have changed since: model\.safetensors"):
        train({"train": {"steps": 3}}, resume="run")


@pytest.mark.parametrize("act", [change_base, lambda: shutil.rmtree("base")], ids=["replaced", "removed"])
def test_files_that_change_while_a_run_trains_are_known_as_they_were_read(
    act: Callable[[], None], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of them was hashed before the first save: a resume took other weights, and a save without the files failed."""
    send = Events.send

    def disturb(events: Events, event: str, step: int, **fields: Any) -> Any:
        if event == "on_after_optimizer_step" and step == 1:
            act()
        return send(events, event, step, **fields)

    shutil.copytree("base", "kept")
    with monkeypatch.context() as patch:
        patch.setattr(Events, "send", disturb)
        train(config(), output="run")
    if act is change_base:
        with pytest.raises(CheckpointError, match="have changed since"):
            train({"train": {"steps": 3}}, resume="run")
        shutil.rmtree("base")
    shutil.copytree("kept", "base")
    assert train({"train": {"steps": 3}}, resume="run").steps == 3


def test_an_overlay_is_found_in_the_home_folder_and_from_elsewhere(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(project))
    train(config(overlay="~/more/model.safetensors"), output="home")
    train(config(overlay="more/model.safetensors"), output="run")
    (project / "elsewhere").mkdir()
    monkeypatch.chdir(project / "elsewhere")
    capsys.readouterr()
    assert mt_generate(["--run", "../run", "--prompt", "The ", "--max-new-tokens", "2"]) == 0, capsys.readouterr().err


def test_weights_that_are_one_file_have_the_tokenizer_and_the_end_tokens_beside_it(project: Path) -> None:
    named = [load_config({"model": {"weights": path}, "data": DATA}) for path in ("base", "base/model.safetensors")]
    assert [each.tokenizer.name for each in named] == ["huggingface", "huggingface"]


def test_a_run_is_found_from_inside_its_own_folders(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("first/checkpoints")
    assert train({"train": {"steps": 3}}, resume="step-00000002").steps == 3
    monkeypatch.chdir("step-00000003")
    for run in (".", "../step-00000002", "../../checkpoints/step-00000002", "../.."):
        assert mt_generate(["--run", run, "--prompt", "The ", "--max-new-tokens", "2"]) == 0
