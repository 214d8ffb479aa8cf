"""Tables for the console."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

COLUMNS = ("loss", "perplexity", "bits_per_byte", "token_accuracy", "tokens", "count", "samples")


def align(rows: Sequence[Sequence[str]], *, texts: int) -> list[str]:
    """Return a line for each row: the first ``texts`` columns are texts, the others numbers."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if place < texts else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def rows_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each result of ``mt-eval`` on rows, aligned; a figure that an objective does not have is left open."""
    names = [name for name in COLUMNS if any(name in result for result in results)]
    names += sorted({name for result in results for name in result} - {*COLUMNS, "model", "step", "dataset"})
    rows = [["model", "dataset", *names]]
    for result in results:
        rows.append([str(result["model"]), str(result["dataset"]), *(_cell(name, result.get(name)) for name in names)])
    return "\n".join(align(rows, texts=2))


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if name in ("tokens", "count", "samples") else f"{value:.4f}"
