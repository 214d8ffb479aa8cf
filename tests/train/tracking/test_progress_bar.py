"""A bar is for a terminal and for slow steps; pipes and files have lines alone."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

CODE = """
import itertools, sys
from mt_core.cli.guard import run_command
from mt_core.protocols import StepRecord
from mt_core.tracking.logs import notice
from mt_train.tracking.console import ProgressLines
from mt_train.tracking.progress_bar import open_progress_bar

def record(step):
    return StepRecord(step, 1.0, 0.1, 1.0, 1, 1.0, 0.1, 0.0)

def run():
    bar = open_progress_bar(total_steps=6)
    if bar is not None:
        bar._clock = itertools.count(0, float(sys.argv[1])).__next__
    lines = ProgressLines(lambda records: "loss [red]1.0\\x1b[31m", total_steps=6, every_steps=3, bar=bar)
    for step in range(1, 7):
        lines.append(record(step))
        if step == 4:
            notice("warning: something to know")
    lines.close()
    print("the end")
    return 0

sys.exit(run_command(run, debug=True))
"""


def run_in_terminal(seconds: float, term: str = "xterm", output: BinaryIO | None = None) -> str:
    """What a terminal of 100 columns gets from a run whose steps take so long; ``output`` gets what is for standard output."""
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": term, "COLUMNS": "100", "LINES": "24"}
    command = [sys.executable, "-c", CODE, str(seconds)]
    with subprocess.Popen(command, stdin=slave, stdout=output or slave, stderr=slave, env=environment) as process:
        os.close(slave)
        said = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            said += part
    os.close(master)
    text = said.decode()
    assert process.returncode == 0, text
    return text


def screen_of(text: str) -> list[str]:
    """The lines that stay on the screen: carriage returns, lines erased and the cursor moved up, as rich uses them."""
    lines, row = [""], 0
    for part in text.replace("\x1b[?25l", "").replace("\x1b[?25h", "").replace("\r\n", "\n").split("\x1b["):
        rest = part
        if part[:2] == "2K":
            lines[row], rest = "", part[2:]
        elif part[:2] == "1A":
            row, rest = row - 1, part[2:]
        elif (end := part.find("m")) >= 0 and part[:end].replace(";", "").isdigit():
            rest = part[end + 1 :]
        for index, piece in enumerate(rest.split("\n")):
            if index:
                row += 1
                lines += [""] * (row + 1 - len(lines))
            tail = piece.rpartition("\r")[2]
            lines[row] = tail if "\r" in piece else lines[row] + tail
    return [line for line in lines if line.strip()]


def test_slow_steps_have_a_bar_on_a_terminal_that_is_gone_at_the_end() -> None:
    text = run_in_terminal(5.0)
    assert "2/6" in text
    assert "━" in text
    assert text.count("\x1b[?25h") >= text.count("\x1b[?25l")  # the cursor is there
    screen = screen_of(text)
    assert [line.partition("|")[0].strip() for line in screen] == [
        "step 1/6",
        "step 3/6",
        "warning: something to know",
        "step 6/6",
        "the end",
    ], text
    assert "loss [red]1.0" in screen[0]


@pytest.mark.parametrize(("seconds", "term"), [(0.5, "xterm"), (5.0, "dumb")])
def test_quick_steps_and_dumb_terminals_have_lines_alone(seconds: float, term: str) -> None:
    text = run_in_terminal(seconds, term)
    assert "━" not in text
    assert "\x1b" not in text


def test_a_pipe_and_a_file_have_lines_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CODE, "5.0"]
    with open(tmp_path / "log", "wb") as file:
        subprocess.run(
            command, stdout=file, stderr=subprocess.STDOUT, check=True, timeout=60, env={**os.environ, "TERM": "xterm"}
        )
    text = (tmp_path / "log").read_text()
    assert text.count("step ") == 3
    assert "\x1b" not in text
    assert "\r" not in text


def test_lines_stay_in_the_file_that_standard_output_is_sent_to(tmp_path: Path) -> None:
    with open(tmp_path / "log", "wb") as file:
        seen = run_in_terminal(5.0, output=file)
    assert (tmp_path / "log").read_text().count("step ") == 3
    assert "━" not in seen
