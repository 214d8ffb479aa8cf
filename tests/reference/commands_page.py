"""docs/reference/commands.md: what each command says of itself with ``--help``."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from unittest import mock

from mt_core.cli import plugins
from mt_plugin_alignment import score_command as score
from mt_plugin_board import command as board
from mt_plugin_search import command as search
from mt_plugin_serve import command as serve
from mt_tools.cli import checkpoint, convert, data, eval, export, generate, report
from mt_train.cli import train_help

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "commands.md"
COLUMNS = "110"

HEAD = """# Commands

<!-- Written by `python tests/reference/write_pages.py` from what the commands say; change that. -->

What each command says of itself. `mt-train`, `mt-data`, `mt-eval` and `mt-search` also take the [options](options.md) of a run.
Exit codes: 0 done, 1 failed, 2 a wrong call or config, 75 stopped and can be resumed, 130 stopped at once by a second Ctrl-C.
"""

Main = Callable[[Sequence[str]], int]
OWN = {"mt-train": train_help.HEAD, "mt-data": data.HEAD, "mt-eval": eval.HEAD}
"""What these say before the options of a run."""
ASKED: Mapping[str, Main] = {
    "mt-generate": generate.main,
    "mt-checkpoint": checkpoint.main,
    "mt-convert": convert.main,
    "mt-export": export.main,
    "mt-report": report.main,
    "mt-board": board.main,
    "mt-score": score.main,
    "mt-search": search.main,
    "mt-serve": serve.main,
    "mt-plugins": plugins.main,
}


def page() -> str:
    """The page as it should be."""
    parts = [HEAD, *(_section(name, [text]) for name, text in OWN.items())]
    parts += [_section(name, list(_pages(main, []))) for name, main in ASKED.items()]
    return "\n".join(parts)


def _section(name: str, texts: Sequence[str]) -> str:
    blocks = "\n\n".join(f"```text\n{text.strip()}\n```" for text in texts)
    return f"## {name}\n\n{blocks}\n"


def _pages(main: Main, words: Sequence[str]) -> Iterator[str]:
    """The page of a command, and those of the commands that it names."""
    text = _help_of(main, words)
    yield text
    below = re.findall(r"^    ([a-z-]+)(?: |$)", text, re.MULTILINE) if "COMMAND" in text else []
    for each in below or (convert.COMMANDS if main is convert.main and not words else []):
        yield from _pages(main, [*words, each])


def _help_of(main: Main, words: Sequence[str]) -> str:
    """What a command prints for ``--help``, on a page of one width."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), mock.patch.dict(os.environ, COLUMNS=COLUMNS), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    return out.getvalue()
