"""Answers that were written down, by their iteration."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from mt_core.errors import DataError
from mt_train.assemble.recorded_answers import RecordedAnswers


def line(iteration: int, number: int, **more: object) -> str:
    return json.dumps({"step": iteration + 1, "iteration": iteration, "text": f"{iteration}/{number}", **more}) + "\n"


def texts(answers: RecordedAnswers, iteration: int) -> list[str]:
    return [record["text"] for record in answers.read(iteration)]


def test_lines_are_found_by_their_own_iteration_wherever_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    wanted = [(iteration, number) for iteration in range(12) for number in range(3)]
    random.Random(0).shuffle(wanted)
    lines = [line(*each, row={"iteration": 7}) for each in wanted]
    path.write_text("".join(lines).replace('": ', '":') + line(1, 9)[:-1])
    answers = RecordedAnswers(path)
    for iteration in (*range(12), 1, 99):
        assert texts(answers, iteration) == [f"{i}/{number}" for i, number in wanted if i == iteration]
    assert RecordedAnswers(tmp_path / "none.jsonl").read(0) == []


def test_a_file_that_grows_or_is_replaced_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text(line(0, 0) + line(1, 0)[:20])
    answers = RecordedAnswers(path)
    assert (texts(answers, 0), texts(answers, 1)) == (["0/0"], [])
    path.write_text(line(0, 0) + line(1, 0) + line(1, 1))
    assert texts(answers, 1) == ["1/0", "1/1"]
    (tmp_path / "other").write_text(line(1, 5) + line(0, 0) + line(1, 0) + line(1, 1))
    (tmp_path / "other").replace(path)
    assert texts(answers, 1) == ["1/5", "1/0", "1/1"]
    path.write_text(line(1, 6))
    assert texts(answers, 1) == ["1/6"]


@pytest.mark.parametrize("damage", ['{"iteration": 1, "text": "cut o', '[{"iteration": 1}]'])
def test_a_damaged_line_is_named_and_the_others_are_read(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text(line(0, 0) + damage + "\n" + line(1, 1) + line(2, 0))
    answers = RecordedAnswers(path)
    assert (texts(answers, 0), texts(answers, 2)) == (["0/0"], ["2/0"])
    with pytest.raises(
        DataError, match=r"rollouts.jsonl: a line with answers of iteration 1 is damaged: .* is no JSON object; put"
    ):
        answers.read(1)


def test_all_iterations_together_read_the_file_twice(tmp_path: Path) -> None:
    """Once for the places, once for the lines; the file was read whole for each iteration."""
    path = tmp_path / "rollouts.jsonl"
    path.write_text("".join(line(number // 4, number % 4, answer="x" * 500) for number in range(800)))
    answers, before = RecordedAnswers(path), _bytes_read()
    for iteration in range(200):
        assert len(answers.read(iteration)) == 4
    buffered = 200 * 10_000  # what an open file reads ahead
    assert _bytes_read() - before < 2 * path.stat().st_size + buffered


def _bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])
