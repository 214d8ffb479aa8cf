"""``Resolved`` ends where ``resolve`` is called: what comes after takes typed parts, which mypy sees."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from mt_train.plugins.resolve import Resolved

ROOT = Path(__file__).parents[2]
BELOW = ("assemble", "planning", "engine", "data", "generation", "evaluate", "checkpoint", "tracking")
DOORS = {"assemble/parts.py", "assemble/resume.py", "planning/inspection.py"}
"""Modules that make parts of it, or call ``resolve`` themselves."""


def names_in(source: str) -> set[str]:
    """Every name that a module imports."""
    found = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom))
    return {alias.name for node in found for alias in node.names}


def test_what_is_built_is_asked_of_typed_methods_and_of_no_name_of_a_kind() -> None:
    assert not hasattr(Resolved, "build")
    home = ROOT / "train/src/mt_train"
    by_name = re.compile(r"\._?build\(f?\"")
    untyped = {str(path.relative_to(home)) for path in home.rglob("*.py") if by_name.search(path.read_text("utf-8"))}
    assert untyped == {"assemble/parts.py"}


def test_below_the_commands_only_the_doors_know_what_is_resolved() -> None:
    home = ROOT / "train/src/mt_train"
    paths = [path for folder in BELOW for path in sorted((home / folder).rglob("*.py"))]
    assert len(paths) > 100
    knowing = {str(path.relative_to(home)) for path in paths if "Resolved" in names_in(path.read_text("utf-8"))}
    assert knowing == DOORS
