"""The table of docs/optimizers.md, from the declarations. ``python tests/optim/support_table.py`` writes it into the page."""

from __future__ import annotations

from pathlib import Path

from mt_core import OptimizerComponent
from mt_plugin_optim.optimizers import OPTIMIZERS

PAGE = Path(__file__).parents[2] / "docs" / "optimizers.md"
BEGIN, END = "<!-- support: begin -->", "<!-- support: end -->"
SEEN = {
    "elementwise": "numbers",
    "whole_parameter": "tensors",
    "gradient_transform": "gradients",
    "fused": "one gradient",
}
LAYOUTS = ("zero0", "zero1", "zero2", "zero3", "pipeline", "offload")


def table() -> str:
    """A row for each optimizer: a dot where it is declared, and so tested."""
    head = ["optimizer", "what it does", "sees", *(layout.replace("zero", "ZeRO ") for layout in LAYOUTS), "runs on"]
    lines = [_row(head), _row(["---"] * len(head)), *(_row(_cells(each)) for each in OPTIMIZERS)]
    return "\n".join(lines)


def _cells(component: OptimizerComponent) -> list[str]:
    marks = ["●" if layout in component.layouts else "" for layout in LAYOUTS]
    devices = "CPU, GPU" if "cpu" in component.devices else "GPU only: not verified"
    form = SEEN[component.form]
    return [f"[`{component.name}`]({component.source})", component.summary, form, *marks, devices]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def page() -> str:
    """The page with the table as it should be."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page())
