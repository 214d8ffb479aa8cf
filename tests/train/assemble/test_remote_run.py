"""A run that was copied into a bucket goes on elsewhere: from its last whole checkpoint, with the same bits, and from nothing less."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

import mt_plugin_datasets.remote as remote
from mt_core.errors import CheckpointError, DataError
from mt_train import train
from mt_train.assemble.remote_run import fetch_run
from mt_train.checkpoint.store import CheckpointStore, verify

STEP3, STEP6 = "checkpoints/step-00000003", "checkpoints/step-00000006"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six steps, and below ``bucket`` what callback ``upload`` made of it."""
    folder = tmp_path_factory.mktemp("run")
    raw: dict[str, Any] = {
        "model": {"name": "llama", "n_layers": 1, "dim": 32, "n_heads": 2, "n_kv_heads": 1},
        "train": {"steps": 6, "micro_batch_size": 2, "sequence_len": 64},
        "data": {"eval": 4, "read_rows": 12},
        "eval": {"every_steps": 3, "samples": 0},
        "checkpoint": {"every_steps": 3, "keep_last": 9},
        "callbacks": {"upload": {"url": f"file://{folder}/bucket"}},
    }
    train(raw, output=folder / "mine")
    return folder


@pytest.fixture
def bucket(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, of which step 6 is half there."""
    monkeypatch.setattr(remote, "WAITS", ())
    monkeypatch.chdir(tmp_path)
    there = tmp_path / "bucket/mine"
    shutil.copytree(whole / "bucket/mine", there)
    (there / STEP6 / "manifest.json").unlink()
    return there


def hashes(run: Path, step: str) -> dict[str, str]:
    return {name: entry["sha256"] for name, entry in verify(run / step)["files"].items()}


def test_it_goes_on_from_the_last_whole_checkpoint_with_the_same_bits(whole: Path, bucket: Path):
    outcome = train({}, resume=f"file://{bucket}")
    assert outcome.output == Path("runs/mine")
    weights = [name for name in hashes(whole / "mine", STEP6) if name.endswith(".safetensors")]
    ours, theirs = hashes(Path("runs/mine"), STEP6), hashes(whole / "mine", STEP6)
    assert weights
    assert [ours[name] for name in weights] == [theirs[name] for name in weights]


def test_what_is_here_and_newer_is_gone_on_with(whole: Path, bucket: Path, tmp_path: Path, capsys: Any):
    shutil.copytree(whole / "mine", tmp_path / "here")
    assert fetch_run(f"file://{bucket}", tmp_path / "here") == tmp_path / "here"
    latest = CheckpointStore(tmp_path / "here").latest()
    assert latest is not None
    assert latest.name == "step-00000006"
    fetch_run(f"file://{bucket}/{STEP3}", tmp_path / "here")  # unless another is named
    latest = CheckpointStore(tmp_path / "here").latest()
    assert latest is not None
    assert latest.name == "step-00000003"


def test_a_storage_that_fails_at_any_operation_leaves_no_half_checkpoint(
    bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    count, fails_from = itertools.count(), 10**9

    def counted(method: Any) -> Any:
        def call(self: Any, *args: Any, **options: Any) -> Any:
            if next(count) >= fails_from:
                raise ConnectionError("reset")
            return method(self, *args, **options)

        return call

    for name in ("find", "cat_file"):
        monkeypatch.setattr(LocalFileSystem, name, counted(getattr(LocalFileSystem, name)))
    fetch_run(f"file://{bucket}", tmp_path / "first")
    total = next(count)
    assert total > 5
    for place in range(total):
        folder = tmp_path / f"run-{place}"
        count, fails_from = itertools.count(), place
        with pytest.raises(DataError, match="cannot be fetched"):
            fetch_run(f"file://{bucket}", folder)
        assert not list(folder.glob("checkpoints/step-*"))
        fails_from = 10**9
        fetch_run(f"file://{bucket}", folder)
        assert hashes(folder, STEP3) == hashes(bucket, STEP3)


def test_damage_on_the_way_is_found_and_forgotten(bucket: Path, tmp_path: Path):
    manifest = verify(bucket / STEP3)
    victim = bucket / STEP3 / max(manifest["files"], key=lambda name: manifest["files"][name]["size"])
    content = victim.read_bytes()
    victim.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=f"{victim.name} is damaged"):
        fetch_run(f"file://{bucket}", tmp_path / "run")
    assert not list((tmp_path / "run").glob("checkpoints/*step-*"))
    victim.write_bytes(content)
    fetch_run(f"file://{bucket}", tmp_path / "run")
    assert hashes(tmp_path / "run", STEP3) == hashes(bucket, STEP3)


def test_what_is_no_run_or_another_is_named(bucket: Path, tmp_path: Path):
    url = f"file://{bucket}"
    with pytest.raises(CheckpointError, match="no checkpoint step-00000006: whole are step-00000003"):
        fetch_run(f"{url}/{STEP6}")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").touch()
    with pytest.raises(CheckpointError, match=r"has thesis\.tex and no checkpoint: give another --output"):
        fetch_run(url, tmp_path / "mine")
    fetch_run(url, tmp_path / "run")
    (bucket / "run.yaml").write_text("model: another\n")
    fetch_run(url, tmp_path / "run")  # the same save tells that it is the same run
    (bucket / STEP3 / "manifest.json").write_bytes(
        (bucket / STEP3 / "manifest.json").read_bytes().replace(b" ", b"  ", 1)
    )
    with pytest.raises(CheckpointError, match="is another run than"):
        fetch_run(url, tmp_path / "run")
    shutil.rmtree(bucket / STEP3)
    with pytest.raises(CheckpointError, match=r"no checkpoints/step-…/manifest\.json, which arrives last"):
        fetch_run(url, tmp_path / "empty")
