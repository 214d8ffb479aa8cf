"""Plugins, the built-in one included, use what everybody may use: docs/reference/names.md lists it."""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "reference"))

from names_page import MODULES

ROOT = Path(__file__).parents[2]
OURS = {name for name in MODULES if "." not in name}
"""Distributions that plugins may import."""
BUILT_IN = ROOT / "plugins/standard/src/mt_plugin_standard"
FOLDERS = [BUILT_IN, *sorted(ROOT.glob("plugins/*/src"))]
SOURCES = sorted(path for folder in FOLDERS for path in folder.rglob("*.py"))


def imports(tree: ast.Module, *, for_types: bool) -> list[tuple[str, list[str]]]:
    """(module, names) of every import; those for type checkers alone only where asked for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = node.body if for_types else []
    nodes = list(ast.walk(tree))
    found = [
        (n.module or "", [a.name for a in n.names]) for n in nodes if isinstance(n, ast.ImportFrom) and not n.level
    ]
    return found + [(a.name, []) for n in nodes if isinstance(n, ast.Import) for a in n.names]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_plugins_use_public_names_only(path: Path) -> None:
    for module, names in imports(ast.parse(path.read_text("utf-8")), for_types=not path.is_relative_to(BUILT_IN)):
        if module.partition(".")[0] in OURS:
            assert module in MODULES, f"{module} is private"
            assert set(names) <= set(import_module(module).__all__)
