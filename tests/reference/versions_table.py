"""The tables of docs/compatibility.md: which package declares which range of what, and which names go when."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from mt_core.deprecation import DEPRECATED, REMOVED

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "compatibility.md"
BEGIN, END = "<!-- versions: begin -->", "<!-- versions: end -->"
LEAVING, LEFT = "<!-- deprecations: begin -->", "<!-- deprecations: end -->"
PROJECTS = [*sorted(ROOT.glob("*/pyproject.toml")), *sorted(ROOT.glob("plugins/*/pyproject.toml"))]


def ranges() -> dict[tuple[str, str], list[str]]:
    """(package, range) → who declares it; an extra as ``NAME[EXTRA]``."""
    found: dict[tuple[str, str], list[str]] = {}
    for file in PROJECTS:
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        owned = {project["name"]: project["dependencies"]}
        owned |= {
            f"{project['name']}[{extra}]": needs for extra, needs in project.get("optional-dependencies", {}).items()
        }
        for owner, needs in owned.items():
            for need in map(Requirement, needs):
                found.setdefault((need.name, ",".join(sorted(map(str, need.specifier), reverse=True))), []).append(
                    owner
                )
    return found


def table() -> str:
    """A row for each package, those of most distributions first."""
    found = sorted(ranges().items(), key=lambda each: (each[0][0] != "torch", -len(each[1]), each[0]))
    rows = [f"| {name} | `{version}` | {', '.join(owners)} |" for (name, version), owners in found]
    return "\n".join(["| package | range | declared by |", "|---|---|---|", *rows])


def around() -> str:
    """Return which Python they ask for, and what the tests pin."""
    pythons = {tomllib.loads(file.read_text(encoding="utf-8"))["project"]["requires-python"] for file in PROJECTS}
    pinned = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if "==" in line]
    return f"Python `{', '.join(sorted(pythons))}`. These are the ranges that the packages declare; the tests pin `{', '.join(pinned)}`."


def deprecations() -> str:
    """A row for each public name that warns or is gone, those that go first at the top."""
    known = sorted((old.gone_in, name, old.now) for table in (DEPRECATED, REMOVED) for name, old in table.items())
    rows = [f"| `mt_core.{name}` | `mt_core.{_beside(name, now)}` | {gone} |" for gone, name, now in known]
    return "\n".join(["| old name | now | gone in mt-core |", "|---|---|---|", *rows])


def _beside(name: str, now: str) -> str:
    return ".".join([*name.split(".")[:-1], now])


def page() -> str:
    """The page with both tables as they should be."""
    text = _put(PAGE.read_text(encoding="utf-8"), BEGIN, END, f"{around()}\n\n{table()}")
    return _put(text, LEAVING, LEFT, deprecations())


def _put(text: str, begin: str, end: str, content: str) -> str:
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n\n{content}\n\n{end}{rest.partition(end)[2]}"
