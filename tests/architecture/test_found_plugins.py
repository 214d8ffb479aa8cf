"""A new plugin is one folder: the import contract finds it, and holds it to its own ``pyproject.toml``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from contracts import forbidden_imports, plugins

PROJECT = """
[project]
name = "mt-plugin-{name}"
version = "0.1.0"
dependencies = ["mt-core>=0.1,<0.2"]
"""


def write(root: Path, name: str, source: str) -> None:
    package = root / f"plugins/{name}/src/mt_plugin_{name}"
    package.mkdir(parents=True)
    (root / f"plugins/{name}/pyproject.toml").write_text(PROJECT.format(name=name))
    (package / "__init__.py").write_text(source)


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("first", "second"):
        monkeypatch.syspath_prepend(tmp_path / f"plugins/{name}/src")
    return tmp_path


def test_a_folder_is_found_and_may_import_the_core(workspace: Path) -> None:
    write(workspace, "first", "from mt_core import Component\n")
    assert [each.folder.name for each in plugins(workspace)] == ["first"]
    assert forbidden_imports(workspace) == []


def test_it_may_import_what_it_depends_on_where_it_says_so(workspace: Path) -> None:
    write(workspace, "first", "from mt_train import load_run\n")
    project = workspace / "plugins/first/pyproject.toml"
    depends = project.read_text().replace('"mt-core>=0.1,<0.2"', '"mt-core>=0.1,<0.2", "mt-train>=0.1,<0.2"')
    project.write_text(depends)
    assert len(forbidden_imports(workspace)) == 1
    project.write_text(depends + '\n[tool.mt]\nimports = ["mt-train"]\n')
    assert forbidden_imports(workspace) == []


@pytest.mark.parametrize(
    "source", ["import mt_train\n", "from mt_plugin_first import x\n"], ids=["training", "another plugin"]
)
@pytest.mark.parametrize(
    "guard", ["", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "], ids=["", "for types"]
)
def test_it_may_import_neither_training_nor_another_plugin(workspace: Path, source: str, guard: str) -> None:
    write(workspace, "first", "x = 1\n")
    write(workspace, "second", guard + source)
    found = forbidden_imports(workspace)
    assert len(found) == 1
    assert "mt_plugin_second" in found[0]
