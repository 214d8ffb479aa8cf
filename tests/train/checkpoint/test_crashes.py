"""A crash or a failing disk at any moment leaves a whole checkpoint, and the next save works."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

from mt_core.errors import CheckpointError
from mt_train.checkpoint import files as files_module
from mt_train.checkpoint import manifest as manifest_module
from mt_train.checkpoint.store import CheckpointStore, find, verify
from mt_train.checkpoint.tensors import open_model

Save = Callable[..., Path]


class Kill(BaseException):
    """Stands for SIGKILL: no handler of ours may catch it."""


OPERATIONS: list[tuple[Any, str]] = [
    (os, "fsync"),
    (os, "replace"),
    (os, "scandir"),
    (Path, "rename"),
    (Path, "write_text"),
    (Path, "mkdir"),
    (Path, "touch"),
    (Path, "chmod"),
    (shutil, "rmtree"),
    (safetensors.torch, "save_file"),
    (manifest_module, "sha256"),
    (files_module.shutil, "disk_usage"),
]
FAILURES = {"fails": OSError(28, "No space left on device"), "is killed": Kill()}
SCENES = {"a new step": (1, 2, 2), "the same step again": (1, 1, 2), "keeping one": (1, 2, 1)}


def value_of(checkpoint: Path) -> float:
    """The one value that a checkpoint is made of; fails when old and new are mixed."""
    verify(checkpoint)
    values = {load().unique().item() for load in open_model(checkpoint / "model").values()}
    assert len(values) == 1
    return float(values.pop())


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize(("owner", "name"), OPERATIONS, ids=[name for _, name in OPERATIONS])
def test_any_operation_that_fails_leaves_a_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: Save, owner: Any, name: str, failure: str, scene: str
) -> None:
    """The N-th call fails, for N = 1, 2, 3 … until a pass is clean."""
    first, second, keep = SCENES[scene]
    for limit in range(1, 60):
        folder = tmp_path / str(limit)
        store = CheckpointStore(folder, say=lambda text: None)
        save(store, first, value=1.0)
        calls, honest = [0], getattr(owner, name)

        def failing(*args: Any, limit: int = limit, calls: list[int] = calls, honest: Any = honest, **kw: Any) -> Any:
            calls[0] += 1
            if calls[0] == limit:
                raise FAILURES[failure]
            return honest(*args, **kw)

        problem: BaseException | None = None
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, failing)
            try:
                save(store, second, keep_last=keep, value=2.0)
            except (CheckpointError, Kill) as error:
                problem = error
        assert not isinstance(problem, CheckpointError) or "No space left" in str(problem)
        assert value_of(find(folder)) in ((1.0, 2.0) if problem else (2.0,))
        if isinstance(problem, CheckpointError):
            assert not list(store.folder.glob(".tmp-step-*")) or name == "rmtree", "debris is removed"
        save(store, 3, keep_last=keep, value=3.0)
        assert value_of(find(folder)) == 3.0
        assert not list(store.folder.glob(".tmp-*")), "the next save clears up"
        if calls[0] < limit:
            return
    pytest.fail("no clean pass in 60 tries")


def test_everything_is_on_the_disk_before_anything_points_at_it(
    store: CheckpointStore, save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL keeps the page cache; only the order of the calls stands between a run and a power cut."""
    events: list[str] = []
    rename, replace = Path.rename, os.replace

    def synced(handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        events.append(f"sync {os.path.relpath(path, store.folder)}")

    def renamed(path: Path, target: Path) -> Path:
        events.append(f"rename {target.name}")
        return rename(path, target)

    def replaced(source: Path, target: Path) -> None:
        events.append(f"replace {target.name}")
        replace(source, target)

    save(store, 1)
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    monkeypatch.setattr(os, "replace", replaced)
    files = verify(save(store, 2, keep_last=1))["files"]
    committed, named = events.index("rename step-00000002"), events.index("replace latest")
    staged = ".tmp-step-00000002"
    before = {f"sync {staged}/{name}" for name in [*files, "manifest.json", "model", "state"]} | {f"sync {staged}"}
    assert before <= set(events[:committed])
    assert events.index(f"sync {staged}/manifest.json") > max(events.index(f"sync {staged}/{name}") for name in files)
    assert "sync ." in events[committed:named], "the rename itself"
    assert "sync .tmp-latest" in events[committed:named]
    assert "sync ." in events[named:], "latest"
    assert events.index("rename .tmp-gone-step-00000001") > named, "rotation comes last"


SAVER = Path(__file__).with_name("saving_worker.py")


def test_no_acknowledged_checkpoint_is_lost_to_sigkill(tmp_path: Path) -> None:
    """A process that does nothing but save is killed at random moments, and started again."""
    chance, acknowledged = random.Random(0), 0
    for _ in range(8):
        process = subprocess.Popen([sys.executable, str(SAVER), str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        seen = int(process.stdout.readline())
        assert seen == acknowledged + 1 or seen == acknowledged + 2, "it goes on where it stopped"
        time.sleep(chance.uniform(0, 0.05))
        process.kill()
        rest = process.stdout.read().split("\n")[:-1]
        process.stdout.close()
        process.wait()
        acknowledged = int(rest[-1]) if rest else seen
        step = verify(find(tmp_path))["step"]
        assert step in (acknowledged, acknowledged + 1)
        acknowledged = step


def test_a_file_that_grows_too_large_for_the_system_is_explained(tmp_path: Path) -> None:
    """RLIMIT_FSIZE stands for a full disk; the library of the tensors reports it in its own words."""
    code = f"""
import resource, signal, torch
from pathlib import Path
from mt_train.checkpoint.store import CheckpointStore, Retention
from mt_train.checkpoint.tensors import write_tensors
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = CheckpointStore(Path({str(tmp_path)!r}))
def write(count):
    def written(folder):
        write_tensors(folder / "model" / "model-00001.safetensors", {{"a": torch.zeros(count)}})
        return [folder / "model" / "model-00001.safetensors"]
    return written
store.save(1, write=write(1000), manifest={{}}, keep=Retention(last=1))
resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16))
try:
    store.save(2, write=write(2**20), manifest={{}}, keep=Retention(last=1))
except Exception as error:
    print(type(error).__name__, error)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for part in ("CheckpointError could not write", "File too large", "were written", "are needed", "are free"):
        assert part in result.stdout
    assert verify(find(tmp_path))["step"] == 1
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["latest", "step-00000001"]
