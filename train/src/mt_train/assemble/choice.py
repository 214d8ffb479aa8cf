"""The choice among a run's checkpoints. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from mt_core.errors import CheckpointError, UsageError
from mt_train.checkpoint.store import CheckpointStore, find
from mt_train.config.digits import parse_whole_number
from mt_train.config.files import section_of


def chosen_checkpoints(run: Path, which: str) -> list[Path]:
    """The checkpoints of a run that ``last``, ``best``, ``all`` or step numbers mean."""
    if which == "last":
        return [find(run)]
    store = CheckpointStore(run)
    saved = dict(store.list())
    if not saved:
        raise CheckpointError(
            f"{find(run).absolute()} is one checkpoint, and {which!r} is for a run; give the run's folder"
        )
    if which == "all":
        return [saved[step] for step in sorted(saved)]
    if which == "best":
        by = str(section_of(run / "run.yaml", "checkpoint").get("best", "eval_loss:min"))
        best = store.best(by)
        if best is None:
            raise CheckpointError(
                f"no checkpoint of {run} was saved on a step that also evaluated {by.partition(':')[0]}; choose last or all,"
                " or train with --checkpoint.every-steps a multiple of --eval.every-steps"
            )
        return [best]
    numbers = [parse_whole_number(word) for word in which.split(",")]
    found = [saved[number] for number in numbers if number in saved]
    if len(found) < len(numbers):
        steps = ", ".join(map(str, sorted(saved)))
        raise UsageError(f"a checkpoint is last, best, all or a saved step, got {which!r}; saved in {run}: {steps}")
    return found
