"""Which checkpoints there are, which is the last one, and which may go."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mt_core.errors import CheckpointError
from mt_train.checkpoint import manifest
from mt_train.checkpoint import store as store_module
from mt_train.checkpoint.store import CheckpointStore, Retention, find, verify
from mt_train.checkpoint.tensors import open_model, write_json

Save = Callable[..., Path]


def test_a_saved_checkpoint_verifies_and_reads_back(store: CheckpointStore, save: Save) -> None:
    path = save(store, 7)
    assert store.latest() == path == find(store.folder.parent) == find(path)
    manifest = verify(path)
    assert (manifest["step"], manifest["tokens"], manifest["format"]) == (7, 70, 1)
    tensors = open_model(path / "model")
    assert {name: load().mean().item() for name, load in tensors.items()} == {"a": 7.0, "b": 7.0}
    assert len(list((path / "model").glob("*.safetensors"))) == 2, "64 bytes a file make two files"


def test_rotation_keeps_the_newest_and_never_touches_what_it_did_not_write(store: CheckpointStore, save: Save) -> None:
    foreign = store.folder / "step-00000001"
    foreign.mkdir(parents=True)
    (foreign / "notes.txt").write_text("mine")
    for step in (2, 3, 4):
        save(store, step)
    assert [step for step, _ in store.list()] == [3, 4]
    assert (foreign / "notes.txt").read_text() == "mine"


def test_rotation_never_deletes_the_new_checkpoint_where_later_steps_of_an_abandoned_run_stand(
    store: CheckpointStore, save: Save
) -> None:
    """A run that goes back to an earlier checkpoint saves steps below those that already exist."""
    for step in (100, 200, 300):
        save(store, step, keep_last=3)
    path = save(store, 150)
    assert store.latest() == path
    assert [step for step, _ in store.list()] == [300, 150], "in the order of the saves"
    save(store, 200)
    assert [step for step, _ in store.list()] == [150, 200]


def test_the_best_checkpoint_stays_beside_the_newest(store: CheckpointStore, save: Save) -> None:
    for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0), (4, None), (5, 2.5)):
        save(store, step, keep_last=1, keep_best=1, loss=loss)
    assert [step for step, _ in store.list()] == [2, 5]
    assert store.best("eval_loss:min") == store.folder / "step-00000002"
    assert store.best("eval_loss:max") == store.folder / "step-00000005"
    assert store.best("eval_accuracy:max") is None
    save(store, 6, keep_last=1, keep_best=1, loss=1.0)
    save(store, 7, keep_last=1, keep_best=1, loss=2.0)
    assert [step for step, _ in store.list()] == [2, 7], (
        "of equal ones the first is the best: later ones were not better"
    )


def test_the_order_of_checkpoints_does_not_depend_on_any_clock(store: CheckpointStore, save: Save) -> None:
    os.utime(save(store, 1), (2**32, 2**32))
    os.utime(save(store, 2), (0, 0))
    save(store, 3)
    assert [step for step, _ in store.list()] == [2, 3]


def test_a_checkpoint_that_lost_a_file_does_not_count_as_kept(store: CheckpointStore, save: Save) -> None:
    save(store, 1)
    (save(store, 2) / "state" / "rank-0000.json").unlink()
    save(store, 3)
    assert [step for step, _ in store.list()] == [1, 2, 3], "the two whole ones, and the broken one for its owner"


def test_an_old_checkpoint_that_cannot_be_removed_never_stops_a_run(
    tmp_path: Path, save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    store = CheckpointStore(tmp_path, say=said.append)
    save(store, 1, keep_last=1)

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(store_module.shutil, "rmtree", refuse)
    assert verify(save(store, 2, keep_last=1))["step"] == 2
    assert len(said) == 1
    assert "step-00000001 could not be removed" in said[0]


def test_saving_a_step_again_replaces_it(store: CheckpointStore, save: Save) -> None:
    save(store, 5)
    path = save(store, 5, value=9.0)
    assert open_model(path / "model")["a"]().mean() == 9.0
    assert sorted(item.name for item in store.folder.iterdir()) == ["latest", "step-00000005"]


def test_a_strangers_folder_in_the_way_is_set_aside_and_never_deleted(tmp_path: Path, save: Save) -> None:
    said: list[str] = []
    store = CheckpointStore(tmp_path, say=said.append)
    foreign = store.folder / "step-00000005"
    foreign.mkdir(parents=True)
    (foreign / "notes.txt").write_text("mine")
    assert verify(save(store, 5))["step"] == 5
    assert (store.folder / "step-00000005.1" / "notes.txt").read_text() == "mine"
    assert "step-00000005.1" in said[0]


def test_a_replacement_that_a_crash_cut_in_two_still_has_its_old_checkpoint(store: CheckpointStore, save: Save) -> None:
    path = save(store, 5)
    path.rename(store.folder / ".tmp-replaced-step-00000005")
    found = store.latest()
    assert found is not None
    assert verify(found)["step"] == 5
    assert [step for step, _ in store.list()] == [5]
    save(store, 6)
    assert verify(path)["step"] == 5, "the next save gives it its name back"


def test_debris_of_killed_saves_goes_with_the_next_one(store: CheckpointStore, save: Save) -> None:
    save(store, 1)
    for name in (".tmp-step-00000002", ".tmp-gone-step-00000000", ".tmp-replaced-step-00000001", ".tmp-mine", "other"):
        (store.folder / name / "model").mkdir(parents=True)
    save(store, 3)
    assert sorted(item.name for item in store.folder.iterdir()) == [
        ".tmp-mine",
        "latest",
        "other",
        "step-00000001",
        "step-00000003",
    ]


def test_a_disk_too_small_for_another_checkpoint_is_found_before_anything_is_written(
    store: CheckpointStore, save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, 1)
    monkeypatch.setattr(store_module, "free_bytes", lambda folder: 100)
    with pytest.raises(CheckpointError, match=r"needs about [\d,]+ bytes.* 100 bytes are free .*keep-last"):
        save(store, 2)
    latest = store.latest()
    assert latest is not None
    assert verify(latest)["step"] == 1
    assert sorted(item.name for item in store.folder.iterdir()) == ["latest", "step-00000001"]


def test_the_keys_of_the_store_are_its_own(store: CheckpointStore) -> None:
    with pytest.raises(CheckpointError, match="'step'"):
        store.save(1, write=lambda folder: [], manifest={"step": 9}, keep=Retention(last=1))


# ------------------------------------------------------------------------------------------------------ several ranks


class Ranks:
    """Two threads that stand for two ranks: ``agree`` is true when both said so."""

    def __init__(self, run_folder: Path) -> None:
        self.votes: list[bool] = []
        self.meeting = threading.Barrier(2, timeout=20)
        self.stores = [CheckpointStore(run_folder, rank=rank, agree=self.agree) for rank in (0, 1)]

    def agree(self, ok: bool) -> bool:
        self.votes.append(ok)
        self.meeting.wait()
        answer = all(self.votes)
        if self.meeting.wait() == 0:
            self.votes.clear()
        self.meeting.wait()
        return answer

    def save(self, step: int, writes: dict[int, Callable[[Path], list[Path]]]) -> dict[int, Any]:
        results: dict[int, Any] = {}

        def work(rank: int) -> None:
            try:
                results[rank] = self.stores[rank].save(step, write=writes[rank], manifest={}, keep=Retention(last=2))
            except CheckpointError as error:
                results[rank] = error

        threads = [threading.Thread(target=work, args=(rank,)) for rank in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


def rank_file(rank: int) -> Callable[[Path], list[Path]]:
    def written(folder: Path) -> list[Path]:
        path = folder / "state" / f"rank-{rank:04d}.json"
        write_json(path, {"rank": rank})
        return [path]

    return written


def test_the_files_of_all_ranks_are_in_one_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank hashes its own: rank 0 alone would take as long as all together."""
    hashed: list[tuple[str, int]] = []
    monkeypatch.setattr(manifest, "sha256", lambda path: hashed.append((path.name, threading.get_ident())) or "0" * 64)
    results = Ranks(tmp_path).save(1, {rank: rank_file(rank) for rank in (0, 1)})
    assert sorted(name for name, _ in hashed) == ["rank-0000.json", "rank-0001.json"]
    assert len({thread for _, thread in hashed}) == 2
    monkeypatch.undo()
    results = Ranks(tmp_path).save(2, {rank: rank_file(rank) for rank in (0, 1)})
    assert verify(results[0])["files"].keys() == {"state/rank-0000.json", "state/rank-0001.json"}
    assert results[0] == results[1]


def test_what_a_writer_does_not_name_is_in_the_manifest_too(store: CheckpointStore) -> None:
    def write(folder: Path) -> list[Path]:
        rank_file(0)(folder)
        return []

    path = store.save(1, write=write, manifest={}, keep=Retention(last=1))
    assert verify(path)["files"].keys() == {"state/rank-0000.json"}


def test_ranks_that_verify_in_shares_read_every_file_once(
    store: CheckpointStore, save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read, honest = save(store, 1), [], manifest.sha256
    monkeypatch.setattr(manifest, "sha256", lambda file: read.append(file.name) or honest(file))
    for number in range(3):
        verify(path, share=(number, 3))
    assert len(read) == len(set(read)) == len(verify(path)["files"])
    (path / "state" / "rank-0000.safetensors").write_bytes(
        (path / "state" / "rank-0000.safetensors").read_bytes()[::-1]
    )
    faults = []
    for number in range(3):
        with suppress(CheckpointError):
            verify(path, share=(number, 3))
            continue
        faults.append(number)
    assert len(faults) == 1


@pytest.mark.parametrize("broken", [0, 1])
def test_a_write_that_fails_on_one_rank_fails_on_all_and_leaves_nothing(tmp_path: Path, broken: int) -> None:
    ranks = Ranks(tmp_path)
    ranks.save(1, {rank: rank_file(rank) for rank in (0, 1)})

    def fail(folder: Path) -> list[Path]:
        raise OSError(28, "No space left on device")

    results = ranks.save(2, {rank: fail if rank == broken else rank_file(rank) for rank in (0, 1)})
    assert "No space left" in str(results[broken])
    assert "were written" in str(results[broken])
    assert "another rank failed" in str(results[1 - broken])
    assert sorted(item.name for item in (tmp_path / "checkpoints").iterdir()) == ["latest", "step-00000001"]
    assert verify(find(tmp_path))["step"] == 1


# ------------------------------------------------------------------------------------------------------------ finding


@pytest.mark.parametrize(
    "content",
    ["../../etc", "/tmp", "", "step-1", "step-00000009", "step-00000001/../x", "step-٠٠٠٠٠٠٠١", "x" * 9999, "\0"],
)
def test_latest_is_never_followed_out_of_its_folder(store: CheckpointStore, save: Save, content: str) -> None:
    save(store, 1)
    (store.folder / "latest").write_text(content)
    with pytest.raises(CheckpointError, match=r"latest names .* in place: step-00000001;"):
        store.latest()


def test_latest_of_a_damaged_checkpoint_lists_the_whole_ones(store: CheckpointStore, save: Save) -> None:
    save(store, 1)
    (save(store, 2) / "manifest.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"names 'step-00000002'.* in place: step-00000001;"):
        find(store.folder.parent)


def test_latest_that_is_a_link_or_a_pipe_is_not_opened(store: CheckpointStore, save: Save) -> None:
    save(store, 1)
    pointer = store.folder / "latest"
    pointer.rename(store.folder.parent / "elsewhere")
    pointer.symlink_to(store.folder.parent / "elsewhere")
    with pytest.raises(CheckpointError, match="latest is not a regular file"):
        store.latest()
    pointer.unlink()
    os.mkfifo(pointer)
    with pytest.raises(CheckpointError, match="latest is not a regular file"):
        store.latest()


def test_a_step_that_is_a_link_is_no_checkpoint(store: CheckpointStore, save: Save) -> None:
    path = save(store, 1)
    shutil.move(path, store.folder.parent / "elsewhere")
    path.symlink_to(store.folder.parent / "elsewhere")
    with pytest.raises(CheckpointError, match="no checkpoint here"):
        store.latest()
    assert store.list() == []


def test_without_latest_the_newest_save_is_the_last(store: CheckpointStore, save: Save) -> None:
    """A crash between the rename and the first ``latest`` leaves a whole checkpoint that nothing names."""
    assert store.latest() is None
    save(store, 9)
    path = save(store, 2)
    (store.folder / "latest").unlink()
    assert store.latest() == path


def test_what_does_not_exist_is_never_a_fresh_start(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nothing does not exist; give a run's folder"):
        find(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match=r"holds no checkpoint \(no manifest"):
        find(tmp_path)


def test_a_run_that_is_misspelled_is_met_with_the_nearest_one(tmp_path: Path, save: Save) -> None:
    save(CheckpointStore(tmp_path / "first"), 3)
    (tmp_path / "frst-").mkdir()  # more alike, and no run
    with pytest.raises(CheckpointError, match=r"frst does not exist; .*\. Did you mean 'first'\?$"):
        find(tmp_path / "frst")
    for far in (tmp_path / "quite-another", tmp_path / "no-folder" / "first"):
        with pytest.raises(CheckpointError, match=r"checkpoints$"):
            find(far)


def test_files_have_the_mode_of_the_umask(store: CheckpointStore, save: Save) -> None:
    old = os.umask(0o027)
    try:
        path = save(store, 1)
    finally:
        os.umask(old)
    assert {oct(item.stat().st_mode & 0o777) for item in path.rglob("*.*")} == {"0o640"}


def test_latest_never_names_a_checkpoint_that_is_gone(
    store: CheckpointStore, save: Save, capsys: pytest.CaptureFixture[str]
) -> None:
    first, last = save(store, 1), save(store, 2)
    store.point(first)
    assert store.latest() == first
    store.point(store.folder / "step-00000009")
    assert store.latest() == first
    assert "step-00000009 is not there); latest stays as it is" in capsys.readouterr().err
    store.point(last)
    assert store.latest() == last
