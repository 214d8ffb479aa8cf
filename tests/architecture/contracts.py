"""The import contract of distributions that nobody lists: those of ``plugins/`` are found, and their own ``pyproject.toml`` says what
they may import. ``lint-imports`` reads it (``contract_types`` in the workspace's ``pyproject.toml``).
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grimp
from importlinter import Contract, ContractCheck, output

CORE = "mt_core"


@dataclass(frozen=True)
class Distribution:
    """One folder with a ``pyproject.toml``; ``imports`` are packages of ours that it may import beside its own."""

    folder: Path
    packages: frozenset[str]
    imports: frozenset[str]


def plugins(root: Path) -> Iterator[Distribution]:
    """The plugins of a workspace."""
    for project in sorted(root.glob("plugins/*/pyproject.toml")):
        yield read_distribution(project)


def read_distribution(project: Path) -> Distribution:
    """A distribution out of its ``pyproject.toml``.

    All import mt-core. One that brings a command imports what else of ours it depends on, but for plugins; for the others that is
    only installed with them, as the commands are with a model, unless ``[tool.mt]`` names it among its ``imports``.
    """
    content = tomllib.loads(project.read_text("utf-8"))
    about, named = content["project"], content.get("tool", {}).get("mt", {}).get("imports", ())
    needed = {_name(line) for line in about["dependencies"]}
    ours = {name.replace("-", "_") for name in needed if name.startswith("mt-") and not name.startswith("mt-plugin-")}
    sources = project.parent / "src"
    packages = {path.stem for path in sources.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    imported = {CORE, *(name.replace("-", "_") for name in named)}
    return Distribution(project.parent, frozenset(packages), frozenset(ours if "scripts" in about else ours & imported))


def _name(requirement: str) -> str:
    match = re.match(r"[\w.-]+", requirement)
    assert match is not None, requirement
    return match[0].lower().replace("_", "-")


def forbidden_imports(root: Path) -> list[str]:
    """Imports that no dependency allows, type-checking ones included, each in one line."""
    found = list(plugins(root))
    packages = sorted(package for each in found for package in each.packages)
    for each in found:
        if (source := str(each.folder / "src")) not in sys.path:
            sys.path.insert(0, source)
    graph = grimp.build_graph(*packages, include_external_packages=True, cache_dir=None)
    return [
        f"{module} imports {other} ({each.folder.name} may import {', '.join(sorted(each.imports))})"
        for each in found
        for module in sorted(graph.modules)
        if module.partition(".")[0] in each.packages
        for other in sorted(graph.find_modules_directly_imported_by(module))
        if (top := other.partition(".")[0]).startswith("mt_") and top not in each.packages | each.imports
    ]


class DistributionsContract(Contract):
    """Every plugin imports what its own dependencies allow, and no other plugin."""

    type_name = "distributions"

    def check(self, graph: Any, verbose: bool) -> ContractCheck:
        """As import-linter calls it."""
        lines = forbidden_imports(Path.cwd())
        return ContractCheck(kept=not lines, metadata={"lines": lines})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """As import-linter calls it."""
        for line in check.metadata["lines"]:
            output.print_error(line)
