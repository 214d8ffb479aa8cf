"""Folders of weights for the server: files of bounded size, whole or not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mt_plugin_vllm.errors import SamplerError
from mt_plugin_vllm.weights import INDEX, WeightsFolder

TENSORS = {f"layer.{number}.weight": torch.full((number + 1, 8), float(number)) for number in range(5)}
"""32 to 160 bytes each."""


def test_files_are_bounded_and_the_index_says_where_each_tensor_is(tmp_path: Path) -> None:
    folder = WeightsFolder(tmp_path / "new", shard_bytes=128)
    folder.begin(7)
    for name, tensor in TENSORS.items():
        folder.add(name, tensor)
    assert not [path for path in (tmp_path / "new").iterdir() if path.name.startswith("weights")], "no half ones"
    assert folder.finish() == "weights-00000007"
    written = tmp_path / "new" / "weights-00000007"
    index = json.loads((written / INDEX).read_text())
    files = {path.name: load_file(path) for path in written.glob("*.safetensors")}
    assert sorted(files) == [
        "model-00001.safetensors",
        "model-00002.safetensors",
        "model-00003.safetensors",
        "model-00004.safetensors",
    ]
    assert index["weight_map"] == {name: file for file, held in files.items() for name in held}
    assert index["metadata"]["total_size"] == 32 * (1 + 2 + 3 + 4 + 5)
    for held in files.values():
        assert len(held) == 1 or sum(each.numel() * each.element_size() for each in held.values()) <= 128
        assert all(torch.equal(tensor, TENSORS[name]) for name, tensor in held.items())


def test_a_tensor_may_change_once_it_was_taken(tmp_path: Path) -> None:
    """Gathered memory is given back before the next one."""
    folder, tensor = WeightsFolder(tmp_path), torch.ones(4)
    folder.begin(1)
    folder.add("a", tensor)
    tensor.zero_()
    folder.finish()
    assert load_file(tmp_path / "weights-00000001" / "model-00001.safetensors")["a"].tolist() == [1.0] * 4


def test_what_an_earlier_attempt_has_left_goes(tmp_path: Path) -> None:
    first = WeightsFolder(tmp_path)
    first.begin(1)
    first.add("a", torch.ones(4))
    first._write()
    second = WeightsFolder(tmp_path)
    second.begin(1)
    second.add("b", torch.ones(2))
    second.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["weights-00000001"]
    assert sorted(json.loads((tmp_path / "weights-00000001" / INDEX).read_text())["weight_map"]) == ["b"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        SamplerError, match=r"cannot be written to .*file: .*choose another folder \(--sampler\.folder\)"
    ):
        WeightsFolder(tmp_path / "file").begin(1)
