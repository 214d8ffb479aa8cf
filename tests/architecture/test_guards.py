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
SOURCES = sorted([*ROOT.glob("core/src/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")])
CORE = ROOT / "core/src/mt_core"
STEP_DATA = ["data/encoded.py", "data/loader.py", "data/order.py", "data/packing.py"]
MOST_LINES = {
    "training path": (
        [
            "config",
            *STEP_DATA,
            "engine",
            "checkpoint",
            "loop.py",
            "components.py",
            "events.py",
            "groups.py",
            "protocols.py",
            "warmup.py",
        ],
        5000,
    ),
    "adapters": (["adapters"], 750),
    "building blocks": (["nn"], 1200),
    "start-up": (["assemble"], 2500),
    "rows made ready": (["data/*.py", "data/templates"], 2550),
    "streams": (["data/stream"], 500),
}
"""Parts of the core, and how much code each may have: nobody reads more than that in a day."""


def functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            yield f"{path.name}:{node.lineno} {node.name}", (node.end_lineno or node.lineno) - node.lineno + 1


def test_public_names_are_sorted_complete_and_importable_without_torch() -> None:
    assert sorted(mt_core.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name)) == mt_core.__all__
    assert set(mt_core.__all__) == set(mt_core._PUBLIC)
    code = "import sys, mt_core; [getattr(mt_core, n) for n in mt_core.__all__]; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    with pytest.raises(AttributeError, match="no public name 'nothing'"):
        mt_core.nothing  # noqa: B018


@pytest.mark.parametrize("part", MOST_LINES)
def test_a_part_of_the_core_stays_small_enough_to_be_read(part: str) -> None:
    names, most = MOST_LINES[part]
    files = {path for name in names for path in CORE.glob(name if name.endswith("py") else f"{name}/**/*.py")}
    assert files
    assert sum(map(code_lines, files)) < most


def code_lines(path: Path) -> int:
    """Lines that hold code: neither blank nor comment nor docstring, which nobody should save on."""
    tree = ast.parse(path.read_text())
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    documentation = {line for node in texts for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    lines = enumerate(path.read_text().splitlines(), start=1)
    return sum(1 for number, line in lines if line.split("#")[0].strip() and number not in documentation)


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
    assert len(text.splitlines()) <= 110
    tree = ast.parse(text)
    hooks = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert all(ast.get_docstring(hook) for hook in hooks)
    assert [hook.name for hook in hooks] == list(HOOKS)
