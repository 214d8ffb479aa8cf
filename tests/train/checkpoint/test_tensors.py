"""Tensors and numbers come back as they were, or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mt_core.errors import CheckpointError
from mt_train.checkpoint.tensors import ModelWriter, open_model, open_tensors, read_json, write_json, write_tensors

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_read_back_with_their_bits_shape_and_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {"a": torch.arange(12).reshape(3, 4).to(dtype), "scalar": torch.tensor(3).to(dtype)}
    write_tensors(tmp_path / "x.safetensors", tensors)
    found = open_tensors(tmp_path / "x.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(found[name](), tensor)
        assert found[name]().dtype == dtype


def test_nan_and_negative_zero_keep_their_bits(tmp_path: Path) -> None:
    odd = torch.tensor([float("nan"), -0.0, float("-inf")])
    write_tensors(tmp_path / "x.safetensors", {"a": odd})
    assert open_tensors(tmp_path / "x.safetensors")["a"]().numpy().tobytes() == odd.numpy().tobytes()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 200))
def test_shards_hold_every_tensor_once_and_no_more_bytes_than_allowed(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], shard_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("model")
    tensors = {f"layer.{at}": torch.full((length,), float(at)) for at, length in enumerate(lengths)}
    writer = ModelWriter(folder, shard_bytes=shard_bytes)
    for name, tensor in tensors.items():
        writer.add(name, tensor)
    writer.close()
    assert {name: load().tolist() for name, load in open_model(folder).items()} == {
        name: tensor.tolist() for name, tensor in tensors.items()
    }
    for file in folder.glob("*.safetensors"):
        held = [load().numel() * 4 for load in open_tensors(file).values()]
        assert sum(held) <= shard_bytes or len(held) == 1, "only a tensor that is larger alone has a file of its own"


def test_a_weight_that_was_not_gathered_is_never_saved(tmp_path: Path) -> None:
    writer = ModelWriter(tmp_path)
    with pytest.raises(CheckpointError, match=r"w is empty \(shape \(0,\)\).*not gathered"):
        writer.add("w", torch.empty(0))


def test_a_name_is_written_once(tmp_path: Path) -> None:
    writer = ModelWriter(tmp_path, shard_bytes=4)
    for name in ("a", "b"):
        writer.add(name, torch.ones(3))
    for name in ("a", "b"):
        with pytest.raises(CheckpointError, match=f"{name} is written twice"):
            writer.add(name, torch.ones(3))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    writer = ModelWriter(tmp_path / "model", shard_bytes=4)
    for name in ("a", "b"):
        writer.add(name, torch.ones(3))
    writer.close()
    return tmp_path / "model"


@pytest.mark.parametrize(
    "file", ["../x", "/etc/hostname", "..", "", "index.json", "model-00001.safetensors/..", 3, None]
)
def test_an_index_that_leaves_its_folder_is_refused(model: Path, file: Any) -> None:
    write_json(model / "index.json", {"a": file})
    with pytest.raises(CheckpointError, match="outside its folder"):
        open_model(model)


def test_an_index_that_does_not_fit_its_files_is_refused(model: Path) -> None:
    write_json(model / "index.json", {"a": "model-00001.safetensors"} | {"c": "model-00001.safetensors"})
    with pytest.raises(CheckpointError, match="lacks c"):
        open_model(model)
    writer = ModelWriter(model)
    writer.add("a", torch.ones(3))
    writer.add("hidden", torch.ones(3))
    writer.close()
    write_json(model / "index.json", {"a": "model-00001.safetensors"})
    with pytest.raises(CheckpointError, match="holds hidden"):
        open_model(model)
    write_json(model / "index.json", ["a"])
    with pytest.raises(CheckpointError, match="no index"):
        open_model(model)


def test_only_regular_files_are_read_or_replaced(tmp_path: Path) -> None:
    target = tmp_path / "target.safetensors"
    write_tensors(target, {"a": torch.ones(3)})
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(target)
    os.mkfifo(pipe)
    for path in (link, pipe, tmp_path):
        for use in (open_tensors, read_json, lambda p: write_tensors(p, {}), lambda p: write_json(p, {})):
            with pytest.raises(CheckpointError, match="is not a regular file"):
                use(path)
    assert link.is_symlink()


@pytest.mark.parametrize("content", [b"", b"\0" * 8, b"\xff" * 64, (10**12).to_bytes(8, "little") + b"{}", b"PK\3\4"])
def test_a_file_of_tensors_that_is_none_gives_one_clear_message(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(CheckpointError, match="missing or damaged"):
        open_tensors(tmp_path / "x")


@settings(max_examples=100, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_in_json_read_back_bit_for_bit(tmp_path_factory: pytest.TempPathFactory, value: float) -> None:
    path = tmp_path_factory.getbasetemp() / "number.json"
    write_json(path, {"value": value})
    assert read_json(path)["value"].hex() == value.hex()


@pytest.mark.parametrize(
    "content",
    [float("nan"), [float("inf")], {1: 2}, {"a": [{None: 1}]}, {"a": {1, 2}}, {"a": torch.ones(1)}],
    ids=["nan", "inf", "number as key", "none as key", "set", "tensor"],
)
def test_what_json_would_change_is_refused_and_leaves_the_old_file(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"old": 1})
    with pytest.raises(CheckpointError, match=r"cannot write .*x\.json"):
        write_json(path, content)
    assert read_json(path) == {"old": 1}


@pytest.mark.parametrize("text", ["", "{", '{"a": NaN}', "-Infinity", '{"a": 1, "a": 2}', "[" * 100_000])
def test_json_that_is_damaged_or_ambiguous_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"cannot read .*x\.json"):
        read_json(tmp_path / "x.json")


def test_a_structure_too_deep_to_read_back_is_refused_when_written(tmp_path: Path) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(CheckpointError, match="cannot write"):
        write_json(tmp_path / "x.json", deep)
