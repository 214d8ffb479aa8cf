"""The callback that keeps a run from going on with another teacher than it began with. Torch is not imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core import CheckpointError, MtConfig, UsageError

from .teacher_files import teacher_digest

if TYPE_CHECKING:
    from mt_core import CallbackContext


class TeacherCheck:
    """Writes a hash of the teacher's files into each checkpoint, and compares them when a run goes on from one."""

    def __init__(self, config: MtConfig) -> None:
        self._path, self._digest = Path(), ""

    def on_model_built(self, context: CallbackContext) -> None:
        """Read the teacher's files. Raises ``UsageError`` where the run has no teacher."""
        objective = context.config.get("objective")
        given = objective.get("teacher_path") if isinstance(objective, Mapping) else None
        if given is None:
            raise UsageError("callback teacher-check: the objective of the run has no teacher; leave the callback out")
        assert isinstance(objective, Mapping), "it has a teacher_path"
        self._path = Path(given).expanduser()
        self._digest = teacher_digest(self._path, objective["teacher_checkpoint"])

    def state_dict(self) -> dict[str, Any]:
        """Return the hash."""
        return {"sha256": self._digest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raise ``CheckpointError`` where the teacher is another one than when the checkpoint was saved."""
        if state.get("sha256") != self._digest:
            raise CheckpointError(
                f"the teacher {self._path} is another one than in the run that saved the checkpoint: its files have other hashes. Put"
                " them back (of a run that has trained on, give --objective.teacher-checkpoint), or start a new run; --callbacks none"
                " goes on with it as it is"
            )
