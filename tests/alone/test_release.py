"""The script that makes a release: what it looks at, and the whole of it in a clone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    yield import_module("release")
    for name in ("release", "wheels"):
        sys.modules.pop(name, None)


def test_the_sources_could_be_released_as_they_are(release: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(["--dry-run"]) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    for name in release.wheels.distributions():
        assert f"\n- {name}\n" in said
        assert f"\n## {name}\n\n- " in said, "each has notes"


def test_everything_that_speaks_against_a_release_is_told_at_once(
    release: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, version, needs in (("mt-core", "0.2.0", ""), ("mt-plugin-one", "0.1.0", '"mt-core>=0.1,<0.2"')):
        folder = tmp_path / name
        folder.mkdir()
        text = f'[project]\nname = "{name}"\nversion = "{version}"\ndependencies = [{needs}]\n'
        (folder / "pyproject.toml").write_text(text)
        (folder / "CHANGELOG.md").write_text("# Changelog\n\n## 0.1.0\n\n- Begins.\n")
    monkeypatch.setattr(release.wheels, "ROOT", tmp_path)
    monkeypatch.setattr(release, "__version__", "0.2.0")
    assert release.main(["--dry-run"]) == 1
    said = capsys.readouterr().err
    for fault in (
        "mt-plugin-one has version 0.1.0, and the release 0.2.0: mend",
        "mt-plugin-one wants mt-core<0.2,>=0.1, which has no 0.2.0: widen",
        "mt-core says nothing under '## 0.2.0' in its CHANGELOG.md",
        "mt_core.warmed was to go by now: move it to REMOVED",
    ):
        assert fault in said


@pytest.mark.parametrize(
    ("version", "reached"), [("0.1.9", False), ("0.2.0.dev0", True), ("0.2.0rc1", True), ("0.2.0", True), ("1.0", True)]
)
def test_a_name_is_due_from_the_first_build_of_its_release_on(release: ModuleType, version: str, reached: bool) -> None:
    assert release.is_reached("0.2", version) == reached


def test_notes_of_one_version_end_where_the_one_before_begins(release: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 0.2.0 (unreleased)\n\n- New.\n\n## 0.1.0\n\n- Old.\n")
    assert release.section(tmp_path, "0.2.0") == "- New."
    assert release.section(tmp_path, "0.1.0") == "- Old."
    assert release.section(tmp_path, "0.1") == ""


@pytest.mark.soak
def test_a_release_in_a_clone_builds_checks_and_tags(tmp_path: Path) -> None:
    clone, out = tmp_path / "clone", tmp_path / "out"
    (tmp_path / "constraints.txt").write_text("torch==2.13.0\n")
    subprocess.run(["git", "clone", "-q", "--no-tags", str(ROOT), str(clone)], check=True)
    variables = {**os.environ, "PIP_CONSTRAINT": str(tmp_path / "constraints.txt")}
    command = [sys.executable, ".ci/release.py", str(out)]
    made = subprocess.run(command, cwd=clone, env=variables, capture_output=True, text=True, timeout=1500, check=False)
    assert made.returncode == 0, made.stderr
    assert len([*(out / "wheels").glob("*.whl")]) == len([*ROOT.glob("plugins/*/pyproject.toml")]) + 4
    tag = subprocess.run(["git", "tag", "-n99999"], cwd=clone, capture_output=True, text=True, check=True).stdout
    assert "## mt-plugin-llama" in tag
    again = subprocess.run(
        [*command[:-1], str(tmp_path / "again")], cwd=clone, capture_output=True, text=True, check=False
    )
    assert again.returncode == 1
    assert "is there already: a version is released once" in again.stderr
