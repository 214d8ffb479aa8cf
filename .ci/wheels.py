"""Builds the wheels of all distributions here, each after those that it depends on: ``python .ci/wheels.py FOLDER [NAME …]``.

With names only these and what they need of ours. It stands beside ``run``, as it belongs to no distribution and no plugin needs it;
``tests/alone/test_wheels.py`` builds with it, and checks the wheels in environments that have nothing else.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Collection
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PIP = (sys.executable, "-m", "pip", "-q", "--disable-pip-version-check")


def distributions() -> dict[str, Path]:
    """Name → folder, of everything here that has a ``pyproject.toml`` with a name."""
    files = [*ROOT.glob("*/pyproject.toml"), *ROOT.glob("plugins/*/pyproject.toml")]
    return {_project(path.parent)["name"]: path.parent for path in sorted(files)}


def needs(folder: Path, known: Collection[str] | None = None) -> set[str]:
    """Distributions of ours (``known``, where they were looked for already) that one depends on, extras apart."""
    found = {re.match(r"[\w.-]+", line)[0] for line in _project(folder)["dependencies"]}  # type: ignore[index]
    return found.intersection(distributions() if known is None else known)


def in_order(*names: str) -> list[str]:
    """These distributions (all, where none is named) and what they need of ours, each after its own needs."""
    known = distributions()
    graph: dict[str, set[str]] = {}
    waiting = list(names or known)
    while waiting:
        name = waiting.pop()
        graph[name] = needs(known[name], known)
        waiting += graph[name] - graph.keys()
    return list(TopologicalSorter(graph).static_order())


def build(into: Path, *names: str) -> list[Path]:
    """Build the wheels into one folder, from copies: in place, setuptools would pack what an earlier build left behind."""
    made = []
    for name in in_order(*names):
        left = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
        copy = shutil.copytree(distributions()[name], into / "sources" / name, ignore=left)
        command = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(into), str(copy)]
        subprocess.run(command, check=True, timeout=600)
        made += [*into.glob(f"{name.replace('-', '_')}-*.whl")]
    shutil.rmtree(into / "sources")
    return made


def _project(folder: Path) -> dict[str, list[str]]:
    return tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]  # type: ignore[no-any-return]


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    print(*build(Path(sys.argv[1]), *sys.argv[2:]), sep="\n")
