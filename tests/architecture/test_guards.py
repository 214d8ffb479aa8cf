"""Rules of the design that a reader cannot check by eye."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mt_core
from mt_core.hookspecs import HOOKS

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*ROOT.glob("*/src/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")])
CORE = ROOT / "core/src/mt_core"


def functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            yield f"{path.name}:{node.lineno} {node.name}", (node.end_lineno or node.lineno) - node.lineno + 1


def test_public_names_are_sorted_complete_and_importable_without_torch() -> None:
    assert sorted(mt_core.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name)) == mt_core.__all__
    code = "import sys, mt_core; [getattr(mt_core, n) for n in mt_core.__all__]; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
    with pytest.raises(AttributeError, match="no public name 'nothing'"):
        mt_core.nothing  # noqa: B018


def test_functions_are_short() -> None:
    sizes = sorted(size for path in SOURCES for _, size in functions(path))
    assert sizes[len(sizes) // 2] <= 12, "median"
    longest = [(name, size) for path in SOURCES for name, size in functions(path) if size > 60]
    assert not longest


def test_nothing_that_is_loaded_can_execute() -> None:
    forbidden = re.compile(
        r"weights_only\s*=\s*False|(?<![.\w])eval\(|pickle\.loads?\(|trust_remote_code\s*=\s*True|yaml\.unsafe"
    )
    found = [(path.name, match[0]) for path in SOURCES for match in forbidden.finditer(path.read_text())]
    assert found == []


def test_every_hook_is_documented_and_fits_one_page() -> None:
    text = (CORE / "hookspecs.py").read_text()
    assert len(text.splitlines()) <= 140
    tree = ast.parse(text)
    hooks = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert all(ast.get_docstring(hook) for hook in hooks)
    assert [hook.name for hook in hooks] == [*HOOKS, "mt_doctor"]
