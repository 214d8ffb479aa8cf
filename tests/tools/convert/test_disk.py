"""A disk that is full: what was needed and written is told, and nothing is left."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mt_core.errors import WeightsError
from mt_tools import save_folder
from mt_tools.convert import disk
from mt_tools.convert.writing import stage_folder

LOADERS = {f"{name}.weight": lambda: torch.zeros(64, 64) for name in "ab"}


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may have more than 20,000 bytes, where the weights have 32,768."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("small_files")
def test_a_write_that_fails_for_want_of_space_says_what_was_written_and_needed(tmp_path: Path) -> None:
    said = (
        rf"the disk of {tmp_path} is full, or a limit is reached \(.*\): [\d,]+ bytes of 32,768 bytes that are needed"
    )
    with pytest.raises(WeightsError, match=said):
        save_folder(tmp_path / "out", LOADERS, {})
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize(
    "write",
    [
        lambda stage: (stage / "tokenizer.json").write_bytes(bytes(30_000)),
        lambda stage: save_file({"a": torch.zeros(64, 128)}, stage / "adapter_model.safetensors"),
    ],
    ids=["by Python", "by safetensors"],
)
def test_whatever_is_written_into_a_folder_may_find_the_disk_full(
    write: Callable[[Path], object], tmp_path: Path
) -> None:
    with pytest.raises(WeightsError, match="is full, or a limit is reached"), stage_folder(tmp_path / "out") as stage:
        write(stage)
    assert not list(tmp_path.iterdir())


def test_weights_for_which_there_is_no_room_are_refused_before_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "free_bytes", lambda folder: 30_000)
    with pytest.raises(WeightsError, match="too little room: 32,768 bytes are needed, and 30,000 bytes are free"):
        save_folder(tmp_path / "out", LOADERS, {})
    assert not list(tmp_path.iterdir())


def test_other_faults_of_the_system_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), stage_folder(tmp_path / "out") as stage:
        (stage / "none" / "file").write_text("")
    assert not list(tmp_path.iterdir())
