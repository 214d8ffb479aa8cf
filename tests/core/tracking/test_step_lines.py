"""Lines by step that a run can do without."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from mt_core import StepLines
from mt_core.tracking.appender import Appender


def line(step: int, **more: Any) -> dict[str, Any]:
    return {"step": step, "text": "naïve\u2028 </s>", **more}


def steps(path: Path) -> list[int]:
    return [json.loads(text)["step"] for text in path.read_text().split("\n") if text]


@pytest.mark.parametrize("damage", [b'{"step": 2, "te', b"\xff\n", b"[]\n", b"{}\n", b"\n"])
def test_a_run_goes_on_after_any_damaged_line(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "lines.jsonl"
    lines = StepLines(path)
    lines.append([line(1), line(1)])
    path.write_bytes(path.read_bytes() + damage)
    if damage.endswith(b"\n"):
        lines.append([line(2), line(3)])
    lines.cut_back(2)
    assert steps(path) == ([1, 1, 2] if damage.endswith(b"\n") else [1, 1])
    lines.append([line(3)])
    assert steps(path)[-1] == 3
    assert not damage.endswith(b"\n") or (tmp_path / "lines.jsonl.damaged").read_bytes() == damage


def test_a_file_is_cut_back_in_less_memory_than_it_takes(tmp_path: Path) -> None:
    """``rollouts.jsonl`` grows to gigabytes in a long run, of which twice as many were in memory when it was resumed."""
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps(line(step, answer=1_000 * "x")) + "\n" for step in range(2_000)))
    size = path.stat().st_size
    tracemalloc.start()
    StepLines(path).cut_back(1_500)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < size / 4
    assert steps(path) == list(range(1_501))


def test_a_file_that_is_not_there_is_not_made_by_cutting_it_back(tmp_path: Path) -> None:
    StepLines(tmp_path / "lines.jsonl").cut_back(3)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_one_warning_and_what_waited_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = Appender._write
    lines = StepLines(tmp_path / "lines.jsonl")
    monkeypatch.setattr(Appender, "_write", lambda self, content: (_ for _ in ()).throw(OSError(28, "No space left")))
    lines.append([line(1)])
    lines.append([line(2)])
    assert capsys.readouterr().err.count("No space left") == 1
    monkeypatch.setattr(Appender, "_write", write)
    lines.close()
    assert steps(tmp_path / "lines.jsonl") == [1, 2]


def test_half_a_character_reads_back_as_it_was(tmp_path: Path) -> None:
    StepLines(tmp_path / "lines.jsonl").append([line(1, text="\ud800")])
    assert json.loads((tmp_path / "lines.jsonl").read_text())["text"] == "\ud800"
