"""A run that is killed again and again loses nothing that it acknowledged, and ends as if nobody had killed it."""

from __future__ import annotations

import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mt_train.checkpoint.store import find, verify

OPERATIONS_OF_A_SAVE = 30
"""About how many operations on files one save takes; kills come within the first two saves of an attempt."""


@dataclass
class Count:
    """What befell the runs."""

    kills: int = 0
    inside: int = 0
    finished: int = 0


def read_diary(diary: Path) -> tuple[int, bool]:
    """The last step that ``latest`` named, and whether a save had begun after it."""
    last, saving = 0, False
    for line in diary.read_text().splitlines() if diary.exists() else []:
        if line.startswith(("saving ", "saved ")):
            saving = line.startswith("saving ")
            last = last if saving else int(line.split("-")[-1])
    return last, saving


def killed_chain(runs: Any, truth: Any, run: Path, chance: random.Random, count: Count, most: int) -> None:
    """One run, killed and resumed until it is finished or ``most`` kills are counted; checked after each kill."""
    words = runs.words(run, {"train.steps": truth.steps, "resume": "auto"})
    known, attempts = 0, 0
    while count.kills < most:
        diary = run.with_name(f"{run.name}-diary-{attempts}")
        attempts += 1
        watched = {"what": "saves", "act": "die", "under": str(run / "checkpoints"), "diary": str(diary), "at": None}
        if attempts % 2:
            watched["at"] = chance.randrange(1, 2 * OPERATIONS_OF_A_SAVE)
        attempt = runs.start(words, watch=watched)
        if watched["at"] is None:
            time.sleep(chance.uniform(0, 0.7 * truth.seconds))
            attempt.send(signal.SIGKILL)
        code = attempt.wait()
        seen, inside = read_diary(diary)
        known = max(known, seen)
        if code == 0:
            break
        assert code == -signal.SIGKILL, attempt.err
        count.kills, count.inside = count.kills + 1, count.inside + inside
        truth.check(run)
        if known:
            assert verify(find(run))["step"] >= known, "an acknowledged checkpoint is lost"
    else:
        code, attempt = runs.run(words)
        assert code == 0, attempt.err
    truth.check_finished(run)
    count.finished += 1


def kill_runs(runs: Any, truth: Any, folder: Path, *, seed: int, most: int) -> Count:
    """Run after run, until so many kills are counted."""
    count, chance = Count(), random.Random(seed)
    while count.kills < most:
        killed_chain(runs, truth, folder / f"run-{count.finished}", chance, count, most)
    return count


def test_a_run_that_is_killed_again_and_again_ends_as_if_nobody_had(
    runs: Any, undisturbed_run: Any, tmp_path: Path
) -> None:
    # Where a kill by the clock hits depends on the machine: of eight, two by the count of operations are inside on any.
    assert kill_runs(runs, undisturbed_run, tmp_path, seed=1, most=8).inside >= 2


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_of_two_hundred_kills_none_loses_a_checkpoint(
    runs: Any, undisturbed_run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    count = kill_runs(runs, undisturbed_run, tmp_path, seed=2, most=200)
    with capsys.disabled():
        print(f"\n{count.kills} kills, {count.inside} inside a save, {count.finished} runs finished; nothing lost")
    assert count.inside >= 80
