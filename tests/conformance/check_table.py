"""The table of docs/testing_a_plugin.md, from the checks. `python tests/conformance/check_table.py` writes it into the page."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import mt_conformance as kit
from mt_conformance.base import BasePluginConformance
from mt_conformance.layouts import LayoutConformance

PAGE = Path(__file__).parents[2] / "docs" / "testing_a_plugin.md"
BEGIN, END = "<!-- checks: begin -->", "<!-- checks: end -->"
KINDS = ["Model", "Dataset", "Tokenizer", "Objective", "Optimizer", "Adapter", "Schedule", "TaskPrint", "Callback"]
KINDS += ["Encoder", "Projector", "Evaluation", "Metric", "PreferenceLoss", "Reward", "Sampler"]


def table() -> str:
    """A row for each check: of any plugin, of what takes part in a step, of each kind."""
    kinds: list[tuple[str, type]] = [
        ("any", BasePluginConformance),
        ("model, objective, optimizer, adapter", LayoutConformance),
    ]
    kinds += [(_words(kind), getattr(kit, f"Base{kind}Conformance")) for kind in KINDS]
    rows = [f"| {name} | {check} | {note} |" for name, kind in kinds for check, note in _checks(kind)]
    return "\n".join(["| kind | check | what it looks at |", "|---|---|---|", *rows])


def _words(name: str) -> str:
    return re.sub(r"(?<=.)([A-Z])", r" \1", name).lower()


def _checks(kind: type) -> Iterator[tuple[str, str]]:
    for name, method in vars(kind).items():
        if name.startswith("test_"):
            doc = " ".join((inspect.getdoc(method) or "").split()).replace("``", "`")
            launch = " (`mt_launch`)" if getattr(method, "pytestmark", None) else ""
            yield name.removeprefix("test_").replace("_", " "), doc + launch


def page() -> str:
    """The page with the table as it should be."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page())
