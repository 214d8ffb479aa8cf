"""What is damaged is found by name."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mt_core.errors import CheckpointError
from mt_train.checkpoint.fields import FIELDS
from mt_train.checkpoint.manifest import RESERVED
from mt_train.checkpoint.store import CheckpointStore, Retention, verify

Save = Callable[..., Path]
FILES = [
    "model/index.json",
    "model/model-00001.safetensors",
    "model/model-00002.safetensors",
    "state/rank-0000.json",
    "state/rank-0000.safetensors",
]


@pytest.fixture
def checkpoint(store: CheckpointStore, save: Save) -> Path:
    return save(store, 1)


def link(path: Path) -> None:
    """The same content, elsewhere."""
    target = path.parents[3] / "elsewhere"
    path.rename(target)
    path.symlink_to(target)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes and should have"),
    "emptied": (lambda path: path.write_bytes(b""), "has 0 bytes and should have"),
    "deleted": (lambda path: path.unlink(), "is missing"),
    "appended": (lambda path: path.write_bytes(path.read_bytes() + b"x"), "bytes and should have"),
    "renamed": (lambda path: path.rename(path.with_name("other")), "other is not listed"),
    "link": (link, "is not a regular file"),
    "pipe": (pipe, "is not a regular file"),
}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_every_damaged_file_is_named(checkpoint: Path, damage: str, file: str) -> None:
    change, expected = DAMAGE[damage]
    change(checkpoint / file)
    with pytest.raises(CheckpointError, match=expected) as caught:
        verify(checkpoint)
    assert file in str(caught.value)


def test_the_files_of_the_table_are_all_there_are(checkpoint: Path) -> None:
    assert list(verify(checkpoint)["files"]) == FILES


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(FILES), st.data())
def test_one_flipped_bit_anywhere_is_found(checkpoint: Path, file: str, data: st.DataObject) -> None:
    path = checkpoint / file
    content = path.read_bytes()
    at = data.draw(st.integers(0, len(content) - 1))
    changed = bytearray(content)
    changed[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(changed)
    try:
        with pytest.raises(CheckpointError, match=f"{file} is damaged: its SHA-256"):
            verify(checkpoint)
    finally:
        path.write_bytes(content)
    verify(checkpoint)


def test_all_faults_are_reported_at_once_with_the_way_out(store: CheckpointStore, save: Save) -> None:
    save(store, 1)
    path = save(store, 2)
    (path / FILES[0]).unlink()
    (path / FILES[3]).write_bytes(b"")
    with pytest.raises(CheckpointError) as caught:
        verify(path)
    for part in (*(FILES[at] for at in (0, 3)), "step-00000001", "every file in place"):
        assert part in str(caught.value)


def test_a_file_that_the_manifest_does_not_list_is_refused(checkpoint: Path) -> None:
    (checkpoint / "model" / "extra.safetensors").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"model/extra\.safetensors is not listed"):
        verify(checkpoint)


def test_a_folder_that_leads_elsewhere_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    shutil.move(checkpoint / "model", tmp_path / "elsewhere")
    (checkpoint / "model").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="model is not a regular file"):
        verify(checkpoint)


@pytest.mark.parametrize("name", ["../latest", "/etc/hostname", "model/../../latest", "state//rank-0000.json", "."])
def test_no_name_in_a_manifest_leads_out_of_the_checkpoint(checkpoint: Path, name: str) -> None:
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["files"][name] = manifest["files"][FILES[0]]
    del manifest["sha256"]  # as in an earlier version
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"outside the checkpoint|is missing"):
        verify(checkpoint)


BROKEN: dict[str, str] = {
    "nothing": "",
    "half": '{"format": 1,',
    "list": "[]",
    "number": "3",
    "no format": "{}",
    "future": '{"format": 2, "step": 1, "save_number": 1, "files": {}}',
    "no files": '{"format": 1, "step": 1, "save_number": 1}',
    "files a list": '{"format": 1, "step": 1, "save_number": 1, "files": []}',
    "bare entry": '{"format": 1, "step": 1, "save_number": 1, "files": {"a": 1}}',
    "short digest": '{"format": 1, "step": 1, "save_number": 1, "files": {"a": {"size": 1, "sha256": "ab"}}}',
    "size a float": '{"format": 1, "step": 1, "save_number": 1, "files": {"a": {"size": 1.0, "sha256": "ab"}}}',
    "step a text": '{"format": 1, "step": "1", "save_number": 1, "files": {}}',
    "another step": '{"format": 1, "step": 2, "save_number": 1, "files": {}}',
    "NaN": '{"format": 1, "step": NaN, "save_number": 1, "files": {}}',
    "twice": '{"format": 1, "format": 1, "step": 1, "save_number": 1, "files": {}}',
    "deep": "[" * 100_000,
    "not UTF-8": "\udcff",
}


@pytest.mark.parametrize("content", BROKEN)
def test_a_manifest_that_is_not_ours_gives_one_clear_message(checkpoint: Path, content: str) -> None:
    (checkpoint / "manifest.json").write_bytes(BROKEN[content].encode(errors="surrogateescape"))
    with pytest.raises(CheckpointError, match="step-00000001"):
        verify(checkpoint)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.text().filter(lambda key: key not in RESERVED | FIELDS.keys()), json_values))
def test_what_a_run_stores_in_the_manifest_comes_back_as_it_was(
    store: CheckpointStore, content: dict[str, Any]
) -> None:
    path = store.save(3, write=lambda folder: [], manifest=content, keep=Retention(last=1))
    manifest = verify(path)
    assert {key: manifest[key] for key in content} == content


def test_a_changed_manifest_is_found_whatever_was_changed(checkpoint: Path) -> None:
    path = checkpoint / "manifest.json"
    text = path.read_text()
    changes = {
        text.replace('"tokens": 10', '"tokens": 11'),
        text.replace('"sha256": "', '"sha25": "'),
        text.replace("\n}\n", ',\n "more": 1\n}\n'),
        text + "\n",
        text.replace("\n", " "),
    }
    assert text not in changes
    for changed in changes:
        path.write_text(changed)
        with pytest.raises(CheckpointError, match=r"manifest\.json is damaged: its"):
            verify(checkpoint)
    path.write_text(text)
    verify(checkpoint)


def test_a_manifest_of_a_version_that_sealed_none_is_read(checkpoint: Path) -> None:
    path = checkpoint / "manifest.json"
    content = json.loads(path.read_text())
    del content["sha256"]
    path.write_text(json.dumps(content))
    assert verify(checkpoint)["tokens"] == 10
