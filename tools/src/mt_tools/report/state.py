"""State of a run, from what its folder says: under way, silent, or how it ended."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mt_train.checkpoint.lock import read_holder

Word = Literal["running", "silent", "stopped", "failed", "completed"]

PATIENCE_SECONDS = 120.0
"""Time without a word after which a run is silent; one with long steps has ten of them."""
STEPS_OF_PATIENCE = 10
WRITTEN = (
    "metrics.jsonl",
    "samples.jsonl",
    "evaluations.jsonl",
    "rollouts.jsonl",
    "events.jsonl",
    "logs/rank-0.log",
    ".lock",
)
"""Files whose age is that of a run's last word. Figures of the machine are none: a thread writes them while training hangs."""


@dataclass(frozen=True)
class RunState:
    """State of a run: ``text`` describes it; ``reason`` says why a run ended early, if that is known.

    ``is_known`` is false where nothing tells whether a run that has no end is still under way.
    """

    word: Word
    text: str
    reason: str = ""
    is_known: bool = True

    @property
    def is_live(self) -> bool:
        """Return whether the run may write more."""
        return self.word in ("running", "silent")


def read_state(
    folder: Path, about: Mapping[str, Any], *, completed: bool, now: float, step_seconds: float = 0.0
) -> RunState:
    """Return the state of a run at a time (seconds since 1970).

    The lock names the process that holds the folder. On this machine it is asked whether it lives; of another machine nothing is
    known but when the run last wrote. A process that is gone without an ``ended`` of its own was killed.
    """
    holder = read_holder(folder / ".lock")
    if holder is not None and (holder.lives or not holder.is_here):
        silence = now - last_written(folder)
        if silence <= max(PATIENCE_SECONDS, STEPS_OF_PATIENCE * step_seconds):
            return RunState("running", "running")
        return RunState("silent", f"silent for {_in_words(silence)}", f"{holder} holds the folder")
    if completed:
        return RunState("completed", "completed")
    ended = about.get("ended")
    if holder is not None:
        return RunState("stopped", "stopped", f"{holder} was killed, or its machine went down")
    if isinstance(ended, dict):
        word: Word = "failed" if ended.get("reason") == "failed" else "stopped"
        return RunState(word, word, str(ended.get("error") or "no cause is known"))
    return RunState("stopped", "stopped", is_known=False)


def _in_words(seconds: float) -> str:
    """Return ``12 min``, ``3 h`` or ``2 days``."""
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h" if minutes < 48 * 60 else f"{minutes // 1440} days"


def last_written(folder: Path) -> float:
    """Return when a run last wrote one of its files, in seconds since 1970; 0 where there is none."""
    newest = 0.0
    for name in WRITTEN:
        try:
            newest = max(newest, os.lstat(folder / name).st_mtime)
        except OSError:
            continue
    return newest
