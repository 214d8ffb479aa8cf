"""A reward in a Python file of the user's, which runs because the run names it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from uuid import uuid4

from pydantic import Field

from mt_core import UsageError, first_line

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
        module = _load(path)
        function = getattr(module, config.function, None)
        if not callable(function):
            own = [
                name
                for name, each in vars(module).items()
                if getattr(each, "__module__", "") == module.__name__ and callable(each)
            ]
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


def _load(path: Path) -> ModuleType:
    """Run the file as a module of its own, which ``sys.modules`` has while it runs and afterwards: dataclasses look their module up.

    Raises ``UsageError`` for a file that is not there, or does not run.
    """
    name = f"mt_reward_of_user_{uuid4().hex}"  # two rewards may be the same file, and no module of the user's has this name
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file():
        raise UsageError(
            f"--rewards.python.path: {path.absolute()} does not exist; write a file with a function score(answers)"
        )
    if spec is None or spec.loader is None:
        raise UsageError(f"--rewards.python.path {path} is no Python file; its name has to end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's code may raise anything; whose it is has to be said
        del sys.modules[name]
        raise UsageError(f"{path} does not run: {type(error).__name__}: {first_line(error)}") from error
    return module
