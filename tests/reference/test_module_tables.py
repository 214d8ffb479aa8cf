"""The tables of modules in the READMEs of plugins: whoever looks for something finds its file, and no file that is gone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PLUGINS = Path(__file__).parents[2] / "plugins"
TABLE = re.compile(r"^\| module \| .*\n\|[-|]+\|\n((?:\|.*\n?)+)", re.MULTILINE)
READMES = [path for path in sorted(PLUGINS.glob("*/README.md")) if TABLE.search(path.read_text(encoding="utf-8"))]


def named(readme: Path) -> set[str]:
    """Files and folders (``losses/``) in the first column."""
    table = TABLE.search(readme.read_text(encoding="utf-8"))
    assert table is not None
    return {name for row in table[1].splitlines() for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])}


def package(readme: Path) -> Path:
    (found,) = (path.parent for path in readme.parent.glob("src/*/__init__.py"))
    return found


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_every_module_is_in_the_table_by_itself_or_by_its_folder(readme: Path) -> None:
    root, known = package(readme), named(readme)
    modules = (path.relative_to(root) for path in sorted(root.rglob("*.py")) if path.name != "__init__.py")
    lacking = [
        str(path)
        for path in modules
        if str(path) not in {"plugin.py", *known} and not any(f"{folder}/" in known for folder in path.parents)
    ]
    assert not lacking


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_a_table_names_no_module_that_is_not_there(readme: Path) -> None:
    assert not [name for name in sorted(named(readme)) if not (package(readme) / name).exists()]
