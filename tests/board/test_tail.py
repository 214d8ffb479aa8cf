"""What has come to a file since it was asked last."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from mt_core.tracking.step_lines import StepLines
from mt_plugin_board import tail
from mt_plugin_board.tail import Change, Tail

NAME = "metrics.jsonl"


def lines(changes: list[Change]) -> list[str]:
    return [line for change in changes for line in change.lines]


def test_lines_come_once_and_half_a_line_when_it_is_whole(tmp_path: Path) -> None:
    path, found = tmp_path / NAME, Tail(tmp_path)
    assert found.changes() == []
    path.write_bytes(b'{"step": 1}\n{"st')
    assert found.changes() == [Change(NAME, ('{"step": 1}\n',))]
    assert found.changes() == []
    with path.open("ab") as file:
        file.write('ep": 2, "text": "\u2028é"}\n'.encode())
    assert found.changes() == [Change(NAME, ('{"step": 2, "text": "\u2028é"}\n',))]
    assert found.changes() == []


def test_a_file_that_a_resumed_run_has_cut_back_is_read_anew(tmp_path: Path) -> None:
    written, found = StepLines(tmp_path / NAME), Tail(tmp_path)
    written.append({"step": step} for step in range(1, 11))
    assert len(lines(found.changes())) == 10
    written.cut_back(4)
    written.append([{"step": 5, "again": True}])
    (change,) = found.changes()
    assert change.is_anew
    assert [json.loads(line)["step"] for line in change.lines] == [1, 2, 3, 4, 5]


def test_a_file_that_was_cut_in_place_and_grew_past_its_old_size_is_read_anew(tmp_path: Path) -> None:
    path, found = tmp_path / NAME, Tail(tmp_path)
    path.write_text("old one\nold two\n")
    found.changes()
    with path.open("r+") as file:
        file.truncate(0)
        file.write("new one\nnew two\nnew three\n")
    assert found.changes() == [Change(NAME, ("new one\n", "new two\n", "new three\n"), is_anew=True)]


def test_any_way_to_write_a_file_in_pieces_gives_its_lines(tmp_path: Path) -> None:
    draw = random.Random(3)
    content = "".join(f"{number} {'é' * draw.randrange(40)}\n" for number in range(300)).encode()
    path, found, read = tmp_path / NAME, Tail(tmp_path), []
    place = 0
    while place < len(content):
        size = draw.randrange(1, 200)
        with path.open("ab") as file:
            file.write(content[place : place + size])
        place += size
        read += lines(found.changes())
    assert "".join(read).encode() == content


def test_a_removed_file_is_told_once_and_a_removed_folder_raises(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / NAME).write_text("a\n")
    found = Tail(folder)
    found.changes()
    (folder / NAME).unlink()
    assert found.changes() == [Change(NAME, (), is_anew=True)]
    assert found.changes() == []
    folder.rmdir()
    with pytest.raises(FileNotFoundError):
        found.changes()


def test_neither_links_nor_pipes_are_opened(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / NAME).symlink_to(secret)
    os.mkfifo(folder / "samples.jsonl")
    assert Tail(folder).changes() == []


def test_long_files_come_in_parts_and_a_line_without_end_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "MOST_BYTES", 100)
    content = "".join(f"line {number}\n" for number in range(50)) + "x" * 350 + "\nafter\n"
    (tmp_path / NAME).write_text(content)
    found, read, left_out = Tail(tmp_path), [], 0
    for _ in range(40):
        changes = found.changes()
        read += lines(changes)
        left_out += sum(change.left_out for change in changes)
        if not found.is_behind:
            break
    assert read == [*(f"line {number}\n" for number in range(50)), "after\n"]
    assert left_out == 1


def test_the_end_of_a_long_file_begins_with_a_whole_line(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("".join(f"line {number}\n" for number in range(1000)))
    read = lines(Tail(tmp_path, [NAME], last_bytes=95).changes())
    assert read == [f"line {number}\n" for number in range(990, 1000)], "95 bytes are ten lines of 9 and half of one"
