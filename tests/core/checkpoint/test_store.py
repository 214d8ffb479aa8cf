"""A checkpoint is whole or not there, and what is damaged is found by name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mt_core.checkpoint import store as store_module
from mt_core.checkpoint.store import CheckpointStore, find, verify
from mt_core.checkpoint.tensors import ModelWriter, open_model, write_json, write_tensors
from mt_core.errors import CheckpointError


def writer(value: float) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        model = ModelWriter(folder / "model", shard_bytes=64)
        model.add("a", torch.full((8,), value))
        model.add("b", torch.full((8, 2), value))
        model.close()
        write_tensors(folder / "state" / "rank-0000.safetensors", {"m": torch.full((3,), value)})
        write_json(folder / "state" / "rank-0000.json", {"value": value})

    return write


def save(store: CheckpointStore, step: int, keep_last: int = 2) -> Path:
    return store.save(step, write=writer(float(step)), manifest={"tokens": step * 10}, keep_last=keep_last)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path)


def test_a_saved_checkpoint_verifies_and_reads_back(store: CheckpointStore) -> None:
    path = save(store, 7)
    assert store.latest() == path == find(store.folder.parent) == find(path)
    manifest = verify(path)
    assert (manifest["step"], manifest["tokens"], manifest["format"]) == (7, 70, 1)
    tensors = open_model(path / "model")
    assert {name: load().mean().item() for name, load in tensors.items()} == {"a": 7.0, "b": 7.0}
    assert len(list((path / "model").glob("*.safetensors"))) == 2, "64 bytes a file make two files"


def test_rotation_keeps_the_newest_and_never_touches_what_it_did_not_write(store: CheckpointStore) -> None:
    foreign = store.folder / "step-00000001"
    foreign.mkdir(parents=True)
    (foreign / "notes.txt").write_text("mine")
    for step in (2, 3, 4):
        save(store, step)
    assert [step for step, _ in store.list()] == [3, 4]
    assert (foreign / "notes.txt").read_text() == "mine"


def test_saving_a_step_again_replaces_it(store: CheckpointStore) -> None:
    save(store, 5)
    path = store.save(5, write=writer(9.0), manifest={}, keep_last=2)
    assert open_model(path / "model")["a"]().mean() == 9.0
    assert sorted(item.name for item in store.folder.iterdir()) == ["latest", "step-00000005"]


OPERATIONS: list[tuple[Any, str]] = [
    (os, "fsync"),
    (os, "replace"),
    (Path, "rename"),
    (Path, "write_text"),
    (Path, "mkdir"),
    (store_module, "sha256"),
]


@pytest.mark.parametrize(("owner", "name"), OPERATIONS, ids=[name for _, name in OPERATIONS])
def test_any_operation_that_fails_leaves_a_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    """The N-th call fails, for N = 1, 2, 3 … until a pass is clean."""
    for limit in range(1, 60):
        folder = tmp_path / str(limit)
        store = CheckpointStore(folder)
        save(store, 1)
        calls, honest = [0], getattr(owner, name)

        def failing(*args: Any, limit: int = limit, calls: list[int] = calls, honest: Any = honest, **kw: Any) -> Any:
            calls[0] += 1
            if calls[0] == limit:
                raise OSError(28, "No space left on device")
            return honest(*args, **kw)

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, failing)
            try:
                save(store, 2)
                failed = ""
            except CheckpointError as error:
                failed = str(error)
        assert not failed or "No space left" in failed
        latest = store.latest()
        assert latest is not None
        assert verify(latest)["step"] in ((1, 2) if failed else (2,))
        save(store, 3)
        assert verify(find(folder))["step"] == 3
        if calls[0] < limit:
            return
    pytest.fail("no clean pass in 60 tries")


def test_a_failure_on_another_rank_fails_this_one_too(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, agree=lambda ok: False)
    with pytest.raises(CheckpointError, match="another rank failed"):
        save(store, 1)
    assert store.latest() is None


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "one flipped bit": (flip, "damaged"),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes and should have"),
    "deleted": (lambda path: path.unlink(), "is missing"),
    "appended": (lambda path: path.write_bytes(path.read_bytes() + b"x"), "bytes and should have"),
    "replaced by a link": (
        lambda path: (path.rename(path.parent.parent / "x"), path.symlink_to("../x"))[1],
        "not a regular|does not list",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_every_damaged_file_is_named(store: CheckpointStore, damage: str) -> None:
    files = [item.relative_to(save(store, 1)) for item in sorted(save(store, 1).rglob("*")) if item.is_file()]
    for file in files:
        path = save(store, 1)
        if file.name == "manifest.json":
            continue
        DAMAGE[damage][0](path / file)
        with pytest.raises(CheckpointError, match=DAMAGE[damage][1]):
            verify(path)
        shutil.rmtree(path)


def test_a_file_that_the_manifest_does_not_list_is_refused(store: CheckpointStore) -> None:
    path = save(store, 1)
    (path / "model" / "extra.safetensors").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"extra\.safetensors"):
        verify(path)


@pytest.mark.parametrize("content", ["../../etc", "/tmp", "", "step-1", "step-00000009"])
def test_latest_is_never_followed_out_of_its_folder(store: CheckpointStore, content: str) -> None:
    save(store, 1)
    (store.folder / "latest").write_text(content)
    with pytest.raises(CheckpointError, match="step-00000001"):
        store.latest()


def test_an_index_that_leaves_its_folder_is_refused(store: CheckpointStore) -> None:
    path = save(store, 1)
    write_json(path / "model" / "index.json", {"a": "../state/rank-0000.safetensors"})
    with pytest.raises(CheckpointError, match="outside its folder"):
        open_model(path / "model")


def test_what_does_not_exist_is_never_a_fresh_start(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        find(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        find(tmp_path)


def test_files_have_the_mode_of_the_umask(store: CheckpointStore) -> None:
    old = os.umask(0o027)
    try:
        path = save(store, 1)
    finally:
        os.umask(old)
    assert {oct(item.stat().st_mode & 0o777) for item in path.rglob("*.safetensors")} == {"0o640"}
