"""``mt-data inspect`` in a terminal: tables, warnings, and examples with the trained part coloured."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from mt_core.config.secrets import redact
from mt_core.config.terminal import drawing_stream, escape_controls
from mt_tools.report.rows import Count, counts, histogram, title_of

BAR = 40
"""Letters of the longest bar."""

TRAINED, SPECIAL = "bold green", "blue"


def show_rows(about: Mapping[str, Any]) -> None:
    """Print everything to standard output; colours only where that is a terminal."""
    console = Console(highlight=False, file=drawing_stream(sys.stdout))
    for part in _parts(about):
        console.print(part, soft_wrap=isinstance(part, Text))


def _parts(about: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield Text(_format(title_of(about)), style="bold")
    yield _table(counts(about["splits"], about["document_names"]), list(about["splits"]))
    yield _lengths(about)
    for problem in about["bad_rows"]:
        yield Text(_format(f"bad row: {problem}"), style="red")
    for text in about["warnings"]:
        yield Text(_format(f"warning: {text}"), style="yellow")
    if not about["warnings"]:
        yield Text("no warning", style="green")
    for example in about["examples"]:
        yield _example(example)


def _table(rows: list[Count], splits: list[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("")
    for split in splits:
        table.add_column({"train": "training", "held_out": "held out"}.get(split, split), justify="right")
    table.add_column("first rows", style="dim", overflow="fold")
    for row in rows:
        label = Text(_format(("  " if row.is_part else "") + row.label))
        table.add_row(label, *row.values, Text(_format(", ".join(row.places))))
    return table


def _lengths(about: Mapping[str, Any]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("tokens", justify="right")
    table.add_column("samples", justify="right")
    table.add_column("")
    for label, count, share in histogram(about["lengths"]):
        table.add_row(label, f"{count:,}", Text("█" * max(int(count > 0), round(BAR * share)), style="cyan"))
    return table


def _example(example: Mapping[str, Any]) -> Text:
    """The sample; what is trained on is coloured, and stands between « and » for those who see no colours."""
    text = Text(
        f"\n{_format(example['row_id'])}, {example['tokens']} tokens, {example['tokens_trained']} trained on\n",
        style="dim",
    )
    text, name = Text.assemble(text), ""
    for (document, trained), parts in groupby(example["parts"], key=itemgetter("document", "trained")):
        if document and document != name:
            text.append(f"{name and chr(10)}{document}: ", style="dim")
        name = document
        style = TRAINED if trained else ""
        text.append("«" if trained else "", style=style)
        for part in parts:
            text.append(_format(part["text"]), style=SPECIAL if part["special"] else style)
        text.append("»" if trained else "", style=style)
    return text


def _format(text: str) -> str:
    return escape_controls(redact(text))
