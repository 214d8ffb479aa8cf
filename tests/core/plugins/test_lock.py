"""The code that a run is made of: what its hash covers, and what is said where it differs."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mt_core.errors import CheckpointError
from mt_core.plugins.host import PluginHost
from mt_core.plugins.metadata import FILE, FOLDER, Selection, find_plugins, place_of
from mt_train.plugins.lock import code_hash, compare, distribution_hash, lock_content

Install = Callable[..., Path]


@pytest.fixture
def lock(installs: Install) -> dict[str, Any]:
    """That of a run with a plugin from a wheel."""
    installs("acme-good")
    host = PluginHost.discover(Selection.from_environment())
    return lock_content([host.get("schedule", "steady"), host.get("schedule", "cosine")])


def test_the_lock_has_version_and_hash_of_every_distribution_that_takes_part(lock: dict[str, Any]) -> None:
    ours = ("mt-core", "mt-plugin-standard", "mt-train")
    assert lock["plugins"] == {"acme-good": "1.0", **{name: importlib.metadata.version(name) for name in ours}}
    assert lock["sha256"].keys() == lock["plugins"].keys()
    assert all(len(value) == 64 for value in lock["sha256"].values())
    assert lock["libraries"] == {name: importlib.metadata.version(name) for name in ("deepspeed", "torch")}
    assert "acme-good" not in lock["editable"]
    assert compare(lock, "the run x") == ""


def test_the_core_and_training_take_part_whatever_is_chosen() -> None:
    assert lock_content([])["plugins"] == {name: importlib.metadata.version(name) for name in ("mt-core", "mt-train")}


def test_a_plugin_that_is_gone_is_refused_with_the_pip_line_of_all_that_differs(lock: dict[str, Any]) -> None:
    lock["plugins"] |= {"mt-plugin-gone": "2.0", "acme-good": "0.9"}
    with pytest.raises(CheckpointError) as caught:
        compare(lock, "the run x")
    assert str(caught.value) == (
        "the run x used mt-plugin-gone, not installed here: pip install acme-good==0.9 mt-plugin-gone==2.0"
    )


def test_another_version_of_a_plugin_or_of_torch_is_told_with_the_pip_line(lock: dict[str, Any]) -> None:
    lock["plugins"]["acme-good"], lock["libraries"]["torch"] = "0.9", "1.0"
    now = importlib.metadata.version("torch")
    assert compare(lock, "the run x") == (
        f"the run x used acme-good 0.9, now 1.0; torch 1.0, now {now}. Equal bits are promised with the same versions only:"
        " pip install acme-good==0.9 torch==1.0"
    )


def test_the_pip_line_says_where_a_build_with_a_label_is(lock: dict[str, Any]) -> None:
    lock["libraries"]["torch"] = "1.0+cpu"
    line = "pip install torch==1.0+cpu --extra-index-url https://download.pytorch.org/whl/cpu"
    assert compare(lock, "the run x").endswith(line)


@pytest.mark.parametrize(
    ("direct_url", "origin"),
    [
        (None, ""),
        ({"url": "file:///home/me/acme", "dir_info": {"editable": True}}, FOLDER),
        ({"url": "file:///home/me/acme", "dir_info": {}}, FOLDER),
        ({"url": "file:///tmp/acme.whl", "archive_info": {}}, FILE),
        ({"url": "https://me:secret@x.org/acme.whl", "archive_info": {}}, "https://x.org/acme.whl"),
        (
            {"url": "https://token@x.org/acme.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "git+https://x.org/acme.git@abc",
        ),
    ],
)
def test_an_origin_is_what_pip_says_without_a_password(
    tmp_path: Path, direct_url: dict[str, Any] | None, origin: str
) -> None:
    """What pip writes into ``direct_url.json`` (PEP 610)."""
    if direct_url is not None:
        (tmp_path / "direct_url.json").write_text(json.dumps(direct_url))
    assert place_of(importlib.metadata.PathDistribution(tmp_path)).origin == origin


@pytest.mark.parametrize(
    "content",
    ["{", "[]", "1", "\x00", '{"url": 1, "dir_info": []}', '{"dir_info": {"editable": true}}', '{"vcs_info": 1}'],
)
def test_a_damaged_direct_url_hurts_nobody(tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "acme_hurt-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-hurt\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mt_core.plugins]\nhurt = acme_hurt\n")
    (info / "direct_url.json").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    assert "acme-hurt" in {each.distribution for each in find_plugins(Selection())}


def test_the_lock_has_the_origin_of_what_no_index_has(lock: dict[str, Any]) -> None:
    assert "acme-good" not in lock["origins"], "a wheel that was unpacked, of which nobody has said it"
    for name in ("mt-core", "mt-train", "mt-plugin-standard"):
        assert lock["origins"].get(name, "") == place_of(importlib.metadata.distribution(name)).origin


def test_a_plugin_of_a_folder_or_an_address_has_no_line_for_an_index(lock: dict[str, Any]) -> None:
    lock["plugins"] |= {"acme-good": "0.9", "mt-plugin-gone": "2.0", "mt-plugin-far": "3.0"}
    lock["origins"] = {"mt-plugin-gone": FOLDER, "mt-plugin-far": "git+https://x.org/far@abc"}
    with pytest.raises(CheckpointError) as caught:
        compare(lock, "the run x")
    assert str(caught.value) == (
        "the run x used mt-plugin-gone, mt-plugin-far, not installed here: pip install acme-good==0.9"
        "; mt-plugin-gone 2.0 was installed from a folder, and has to be installed from there; mt-plugin-far 3.0 was installed"
        " from git+https://x.org/far@abc, and has to be installed from there"
    )
    del lock["plugins"]["acme-good"], lock["plugins"]["mt-plugin-far"]
    lock |= {"origins": {}, "editable": ["mt-plugin-gone"]}  # of an older release
    with pytest.raises(CheckpointError, match=r"not installed here: mt-plugin-gone 2\.0 was installed from a folder"):
        compare(lock, "the run x")


def test_other_files_under_one_version_are_told(lock: dict[str, Any]) -> None:
    lock["sha256"]["acme-good"] = "0" * 64
    assert compare(lock, "the run x").startswith("the run x used other files of acme-good, under the same version")


def test_a_lock_of_an_older_release_is_compared_by_versions(lock: dict[str, Any]) -> None:
    assert compare({"core": lock["core"], "plugins": lock["plugins"]}, "the run x") == ""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with code, data and a folder inside, importable and not loaded."""
    folder = tmp_path / "code_of_somebody"
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('hashed, not imported')\n")
    (folder / "inner" / "data.jinja").write_text("text")
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


def test_a_hash_changes_with_any_byte_and_any_name_of_a_package(package: Path) -> None:
    before = code_hash("code_of_somebody.plugin")
    assert before == code_hash("code_of_somebody"), "all of the package, whichever module is named"
    (package / "inner" / "data.jinja").write_text("texT")
    changed = code_hash("code_of_somebody")
    (package / "inner" / "data.jinja").rename(package / "inner" / "other.jinja")
    assert len({before, changed, code_hash("code_of_somebody")}) == 3


def test_what_python_and_editors_leave_behind_changes_no_hash(package: Path) -> None:
    before = code_hash("code_of_somebody")
    for name in ("__pycache__/x.cpython-311.pyc", "old.pyc", ".x.py.swp", "inner/.DS_Store"):
        (package / name).parent.mkdir(exist_ok=True)
        (package / name).write_text("left over")
    assert code_hash("code_of_somebody") == before


def test_a_folder_that_is_worked_on_has_the_hash_of_its_wheel(tmp_path: Path) -> None:
    """In processes of their own: both are one distribution."""
    source = shutil.copytree(
        Path(__file__).parents[3] / "plugins/llama", tmp_path / "llama", ignore=shutil.ignore_patterns("*.egg-info")
    )
    build = [sys.executable, "-m", "pip", "-q", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*build, "-w", str(tmp_path), str(source)], check=True, timeout=600)
    zipfile.ZipFile(next(tmp_path.glob("*.whl"))).extractall(tmp_path / "site")
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); from mt_train.plugins.lock import *;"
    code += "print(distribution_hash('mt-plugin-llama'))"
    said = subprocess.run([sys.executable, "-c", code], check=True, timeout=300, capture_output=True, text=True)
    assert said.stdout.strip() == distribution_hash("mt-plugin-llama")
