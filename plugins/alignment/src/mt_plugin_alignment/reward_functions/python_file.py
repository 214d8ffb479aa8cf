"""A reward in a Python file of the user's, which runs because the run names it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from mt_core import UsageError

from ..user_files import own_functions, run_file
from .base import Answer, RewardOptions


class PythonConfig(RewardOptions):
    """File and function."""

    path: Path = Field(description="Python file; it is run with the rights of this command")
    function: str = Field("score", description="function that gets the answers, and returns a score for each")
    timeout: float | None = Field(
        None,
        gt=0,
        description="longest that it may take for the answers of an iteration (seconds); none: objective.score_timeout",
    )


class PythonReward:
    """Calls the function. ``file`` is the path that its lines have in a traceback."""

    def __init__(self, config: PythonConfig) -> None:
        """Raise ``UsageError`` for a file or a function that is not there, or does not run."""
        path = config.path.expanduser()
        module = run_file(path, "--rewards.python.path", "a function score(answers)")
        function = getattr(module, config.function, None)
        if not callable(function):
            own = own_functions(module)
            there = f", but {', '.join(own)}" if own else ""
            raise UsageError(
                f"{path} has no function {config.function!r}{there}; name it with --rewards.python.function"
            )
        self._function, self.weight, self.timeout = function, config.weight, config.timeout
        self.file = module.__file__

    def score(self, answers: Sequence[Answer]) -> Sequence[float | None]:
        """See ``Reward``."""
        scores: Sequence[float | None] = self._function(answers)
        return scores
