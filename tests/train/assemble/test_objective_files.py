"""What an objective trained beside the language head lies in files of its own beside exported weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mt_core.errors import WeightsError
from mt_tools.convert.folder import split_objective
from mt_tools.convert.writing import write_beside
from mt_train.assemble.objective_files import objective_files, read_objective

NAMES = [
    "model.norm.weight",
    "lm_head.objective.value_head.weight",
    "lm_head.objective.value_head.bias",
    "lm_head.weight",
]


def test_a_file_has_the_name_of_the_module_and_tensors_have_their_own() -> None:
    own = {"value_head.weight": NAMES[1], "value_head.bias": NAMES[2]}
    assert objective_files(NAMES) == {"value_head.safetensors": own}
    assert objective_files(["lm_head.weight"]) == {}


def test_what_was_written_beside_a_model_is_read_back(tmp_path: Path) -> None:
    values = {name: torch.randn(2) for name in NAMES}
    of_model, beside = split_objective({name: lambda value=value: value for name, value in values.items()})
    assert list(of_model) == [NAMES[0], NAMES[3]]
    write_beside(tmp_path, beside)
    assert load_file(tmp_path / "value_head.safetensors").keys() == {"value_head.weight", "value_head.bias"}
    found = read_objective(tmp_path, NAMES)
    assert {name: load().tolist() for name, load in found.items()} == {
        name: values[name].tolist() for name in NAMES[1:3]
    }


def test_what_a_model_has_not_is_left_in_the_file(tmp_path: Path) -> None:
    save_file(
        {"value_head.weight": torch.ones(2), "value_head.scale": torch.ones(1)}, tmp_path / "value_head.safetensors"
    )
    assert list(read_objective(tmp_path, NAMES[:2])) == [NAMES[1]]
    assert read_objective(tmp_path, ["lm_head.weight"]) == {}
    assert read_objective(tmp_path / "elsewhere", NAMES) == {}


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "value_head.safetensors").write_bytes(b"broken")
    with pytest.raises(WeightsError, match=r"value_head\.safetensors"):
        read_objective(tmp_path, NAMES)


def test_a_module_never_takes_the_place_of_the_weights(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(WeightsError, match=r"would be written into model\.safetensors, which the folder has; rename"):
        write_beside(tmp_path, {"model.safetensors": {"model.weight": lambda: torch.ones(1)}})
    assert (tmp_path / "model.safetensors").read_bytes() == b"weights"
