"""A run that has come to its end stays there: whatever killed it between its last save and ``completed``, and however it ended."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mt_train.checkpoint.store import CheckpointStore, find
from mt_train.tracking.metrics import MetricsFile

ENDED_STEP, BEST_STEP, STEPS = 3, 1, 9
CHANGES = {
    "train.steps": STEPS,
    "eval.every-steps": 1,
    "eval.samples": 0,
    "checkpoint.best": "eval_loss:max",  # so that the best is the first, and the last two are in vain
    "checkpoint.keep-last": 9,
    "callbacks": "best,early-stopping",
    "callbacks.early-stopping.patience": 2,
}


def steps_of(run: Path) -> list[int]:
    return [record["step"] for record in MetricsFile(run / "metrics.jsonl").read()]


def saves_of(run: Path) -> list[int]:
    return [json.loads((path / "manifest.json").read_text())["save_number"] for _, path in CheckpointStore(run).list()]


@pytest.fixture(scope="module")
def ended_run(runs: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of nine steps that early stopping ended after three, with the first one as its checkpoint."""
    run = tmp_path_factory.mktemp("ended") / "run"
    code, attempt = runs.run(runs.words(run, CHANGES))
    assert code == 0, attempt.err
    assert f"done: {ENDED_STEP} of {STEPS} steps" in attempt.out
    assert f"--train.steps {2 * STEPS}" in attempt.out, "fewer than the run was to have would train nothing"
    assert (find(run).name, (run / "completed").exists()) == (f"step-{BEST_STEP:08d}", True)
    return run


@pytest.fixture
def run_copy(ended_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(ended_run, tmp_path / "run"))


def test_a_run_that_a_callback_ended_is_complete_however_often_it_is_resumed(runs: Any, run_copy: Path) -> None:
    before = (steps_of(run_copy), saves_of(run_copy))
    for words in (["--resume", str(run_copy)], runs.words(run_copy, {**CHANGES, "resume": "auto"})):
        code, attempt = runs.run(words)
        assert code == 0, attempt.err
        assert f"is completed (a callback ended it after step {ENDED_STEP} of {STEPS})" in attempt.out
        assert "was saved after it" not in attempt.err, "nothing is damaged"
        assert (steps_of(run_copy), saves_of(run_copy)) == before


@pytest.mark.parametrize(
    "latest",
    [ENDED_STEP - 1, ENDED_STEP, BEST_STEP],
    ids=["before latest named the last save", "before best chose another", "before completed"],
)
def test_an_end_that_was_not_written_down_is_written_down_and_nothing_is_trained(
    runs: Any, run_copy: Path, latest: int
) -> None:
    """What is there when a run is killed behind its last save: the soak test below kills it at each of these moments."""
    (run_copy / "completed").unlink()
    (run_copy / "loss.png").unlink()
    (run_copy / "checkpoints" / "latest").write_text(f"step-{latest:08d}\n")
    before = (steps_of(run_copy), saves_of(run_copy))
    code, attempt = runs.run(["--resume", str(run_copy)])
    assert code == 0, attempt.err
    assert "was saved after it" not in attempt.err
    assert (steps_of(run_copy), saves_of(run_copy)) == before
    assert (find(run_copy).name, (run_copy / "completed").exists()) == (f"step-{BEST_STEP:08d}", True)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_killed_at_each_moment_behind_the_last_save_a_run_ends_where_it_was_told_to(
    runs: Any, tmp_path: Path, ended_run: Path
) -> None:
    """From the last operation backwards, until a kill comes before the last save was acknowledged."""
    count, behind = count_operations(runs, tmp_path), 0
    for at in range(count, 0, -1):
        run, diary = tmp_path / f"run-{at}", tmp_path / f"diary-{at}"
        watched = {"what": "everything", "act": "die", "under": str(run), "diary": str(diary), "at": at}
        code, attempt = runs.run(runs.words(run, CHANGES), watch=watched)
        assert code < 0, attempt.err
        over = CheckpointStore(run).list()[-1][0] == ENDED_STEP
        code, attempt = runs.run(["--resume", str(run)])
        assert code == 0, attempt.err
        assert steps_of(run) == steps_of(ended_run), f"killed {diary.read_text()}"
        assert saves_of(run) == saves_of(ended_run)
        assert (find(run).name, (run / "completed").exists()) == (find(ended_run).name, True)
        if not over:
            break
        behind += 1
    assert behind >= 8, "of latest, of what best chose, of the curve, and of completed"


def count_operations(runs: Any, folder: Path) -> int:
    """Return how often a run that nobody kills changes a file."""
    diary = folder / "diary"
    watched = {"what": "everything", "act": "die", "under": str(folder / "run"), "diary": str(diary), "at": None}
    code, attempt = runs.run(runs.words(folder / "run", CHANGES), watch=watched)
    assert code == 0, attempt.err
    return int(diary.read_text().split("count ")[1])


def test_who_asks_for_more_gets_more(runs: Any, run_copy: Path) -> None:
    words = ["--resume", str(run_copy), "--train.steps", str(STEPS + 1), "--callbacks.early-stopping.patience", "99"]
    code, attempt = runs.run(words)
    assert code == 0, attempt.err
    assert f"the run ended with step-{BEST_STEP:08d} as its checkpoint, and its last step is in" in attempt.err
    assert steps_of(run_copy) == list(range(1, STEPS + 2))


def test_without_the_callback_that_ended_it_a_run_goes_on_to_its_last_step(runs: Any, run_copy: Path) -> None:
    code, attempt = runs.run(["--resume", str(run_copy), "--callbacks", "none"])
    assert code == 0, attempt.err
    assert steps_of(run_copy) == list(range(1, STEPS + 1))


def test_a_checkpoint_that_is_named_is_gone_on_from(runs: Any, run_copy: Path) -> None:
    code, attempt = runs.run(["--resume", str(run_copy / "checkpoints" / "step-00000002")])
    assert code == 0, attempt.err
    assert steps_of(run_copy) == steps_of(run_copy)[:ENDED_STEP], "early stopping remembers, and ends it again"
    assert "is completed (" not in attempt.out


def test_a_run_of_an_earlier_version_is_complete_as_well(runs: Any, run_copy: Path) -> None:
    """Its manifests do not say that a callback ended it, and have no seal."""
    for _, path in CheckpointStore(run_copy).list():
        manifest = json.loads((path / "manifest.json").read_text())
        del manifest["ended_by_callback"], manifest["sha256"]
        (path / "manifest.json").write_text(json.dumps(manifest))
    before = steps_of(run_copy), saves_of(run_copy)
    code, attempt = runs.run(["--resume", str(run_copy)])
    assert code == 0, attempt.err
    assert "was saved after it" not in attempt.err
    assert "is completed" in attempt.out
    assert (steps_of(run_copy), saves_of(run_copy)) == before


def test_a_run_in_epochs_ends_and_is_asked_for_more_in_epochs(runs: Any, tmp_path: Path) -> None:
    changes = {**CHANGES, "train.epochs": 2.5, "data.read-rows": 8}
    del changes["train.steps"]
    code, attempt = runs.run(runs.words(tmp_path / "run", changes))
    assert code == 0, attempt.err
    assert "--train.epochs 5" in attempt.out
    code, attempt = runs.run(["--resume", str(tmp_path / "run")])
    assert (code, steps_of(tmp_path / "run")) == (0, [1, 2, 3]), attempt.err
    assert "is completed (a callback ended it after step 3 of " in attempt.out
    more = ["--train.epochs", "3", "--callbacks.early-stopping.patience", "99"]
    code, attempt = runs.run(["--resume", str(tmp_path / "run"), *more])
    assert code == 0, attempt.err
    assert steps_of(tmp_path / "run")[-1] > ENDED_STEP
