"""The N-th operation on a file fails, anywhere in a run: it ends with one message, or goes on where a file is no matter of life."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

STEPS = 3
SHORT = {"train.steps": STEPS, "checkpoint.keep-last": 1}
RESUMED = SHORT | {"resume": "auto", "train.max-minutes": "none"}


def run_failing_at(runs: Any, run: Path, at: int | None) -> tuple[int, Any, str]:
    """A short run of which the ``at``-th operation fails: code, what it said, and which operation that was."""
    diary = run.with_name(f"{run.name}-diary")
    watched = {"what": "everything", "act": "fail", "under": str(run), "diary": str(diary), "at": at}
    code, attempt = runs.run(runs.words(run, SHORT), watch=watched)
    return code, attempt, diary.read_text()


def survives(runs: Any, truth: Any, run: Path, at: int) -> None:
    """One failure: what the run says of it, what is left, and that it can be gone on with."""
    code, attempt, diary = run_failing_at(runs, run, at)
    said = [line for line in attempt.err.splitlines() if line.startswith(("error", "warning"))]
    told = f"{diary.splitlines()[0]}: code {code}\n{attempt.err}"
    assert "Traceback" not in attempt.err, told
    assert "unexpected" not in attempt.err, told
    assert all("No space left" in line for line in said), told
    assert len(said) == 1 or (code == 0 and not said and ": os.mkdir" in diary), told  # a folder that is there anyway
    assert not said or said[0].startswith("warning" if code == 0 else "error"), told
    assert truth.check(run)[-1:] == [STEPS] or code == 1, told
    code, attempt = runs.run(runs.words(run, RESUMED))
    assert code == 0, told + attempt.err
    truth.check_finished(run)


@pytest.fixture(scope="module")
def truth(runs: Any) -> Any:
    return runs.truth(STEPS)


@pytest.fixture(scope="module")
def operations(runs: Any, tmp_path_factory: pytest.TempPathFactory) -> int:
    """Return how many operations on files a run makes when nothing fails."""
    code, attempt, diary = run_failing_at(runs, tmp_path_factory.mktemp("honest") / "run", None)
    assert code == 0, attempt.err
    return int(diary.split()[-1])


def test_a_run_survives_the_failure_of_some_operations_on_its_files(
    runs: Any, truth: Any, operations: int, tmp_path: Path
) -> None:
    assert operations > 100
    for at in range(random.Random(operations).randrange(1, 20), operations, operations // 8):
        survives(runs, truth, tmp_path / str(at), at)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_run_survives_the_failure_of_every_operation_on_its_files(
    runs: Any, truth: Any, operations: int, tmp_path: Path
) -> None:
    for at in range(1, operations + 1):
        survives(runs, truth, tmp_path / str(at), at)


# ---------------------------------------------------------------------------------------------- a limit on a file's size


def test_a_checkpoint_that_does_not_fit_leaves_the_old_one_and_says_how_much_is_needed(
    runs: Any, truth: Any, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    code, attempt = runs.run(runs.words(run, SHORT | {"train.max-minutes": 1e-9}))
    assert code == 75, attempt.err
    before = {path.name for path in (run / "checkpoints").iterdir()}
    state = max(path.stat().st_size for path in run.rglob("*.safetensors"))
    code, attempt = runs.run(runs.words(run, RESUMED), largest_file=state - 1)
    assert code == 1
    assert "Traceback" not in attempt.err
    errors = [line for line in attempt.err.splitlines() if line.startswith("error")]
    assert len(errors) == 1
    for part in ("step-00000002", "File too large", "bytes were written", "are needed", "are free", "keep-last"):
        assert part in errors[0]
    assert {path.name for path in (run / "checkpoints").iterdir()} == before, "the debris is gone"
    assert truth.check(run) == [1]
    code, attempt = runs.run(runs.words(run, RESUMED))
    assert code == 0, attempt.err
    truth.check_finished(run)


def test_files_that_a_run_can_do_without_cost_one_warning_each_when_they_do_not_fit(runs: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    often = {"log.every-steps": 1, "eval.every-steps": 1, "eval.sample-tokens": 16}
    words = runs.words(run, {"train.steps": 60, "checkpoint.every-steps": "none", **often})
    code, attempt = runs.run(words, largest_file=8192)
    said = [line for line in attempt.err.splitlines() if line.startswith(("warning", "error"))]
    for name in ("metrics.jsonl", "events.out.tfevents", "rank-0.log", "samples.jsonl"):
        assert sum(name in line for line in said) == 1, attempt.err
    assert (code, len(said)) == (1, 5), "the checkpoint at the end does not fit either, and matters"
    assert "Traceback" not in attempt.err
    lines = (run / "metrics.jsonl").read_bytes().split(b"\n")
    assert len(lines) > 5
    assert lines[-1] == b"", "no half record"
