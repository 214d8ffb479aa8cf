"""Which of a run's checkpoints a user means. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from mt_core.checkpoint.store import CheckpointStore, find
from mt_core.config.files import read_config
from mt_core.errors import CheckpointError, UsageError


def chosen(run: Path, which: str) -> list[Path]:
    """The checkpoints of a run that ``last``, ``best``, ``all`` or step numbers mean."""
    if which == "last":
        return [find(run)]
    store = CheckpointStore(run)
    saved = dict(store.list())
    if not saved:
        raise CheckpointError(f"{run.absolute()} holds no checkpoint; give a run's folder")
    if which == "all":
        return [saved[step] for step in sorted(saved)]
    if which == "best":
        by = str(read_config(run / "run.yaml").get("checkpoint", {}).get("best", "eval_loss:min"))
        best = store.best(by)
        if best is None:
            raise CheckpointError(
                f"no checkpoint of {run} was saved on a step that also evaluated {by.partition(':')[0]}; choose last or all,"
                " or train with --checkpoint.every-steps a multiple of --eval.every-steps"
            )
        return [best]
    words = which.split(",")
    if not all(word.isdigit() and int(word) in saved for word in words):
        steps = ", ".join(map(str, sorted(saved)))
        raise UsageError(f"--checkpoints takes last, best, all or saved steps, got {which!r}; saved: {steps}")
    return [saved[int(word)] for word in words]
