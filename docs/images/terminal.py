"""Draws terminal.svg: what ``mt-train`` prints in a real run. ``python docs/images/terminal.py`` runs it again, in a minute."""

from __future__ import annotations

import io
import re
import subprocess
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

COMMAND = "mt-train --model llama --train.steps 100 --output runs/first"
PICTURE = Path(__file__).with_name("terminal.svg")
WIDTH = 112
"""Columns."""


def output() -> str:
    """What the command prints in an empty folder. Raises ``CalledProcessError`` where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(COMMAND.split(), cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout


def draw(said: str) -> str:
    """An SVG that loads no fonts: those of the reader's machine will do."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False)
    console.print(Text.assemble((f"$ {COMMAND}\n", "bold"), said))
    svg = console.export_svg(title="mt-train", unique_id="mt")
    return re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)


if __name__ == "__main__":
    PICTURE.write_text(draw(output()), encoding="utf-8")
