"""The exceptions of the framework. Each message says what, got, allowed and fix.

MtError                       exit code 1: something failed
├── DataError                 a row, file or folder of rows is unusable
├── WeightsError              weights that are missing, left over or of another shape
├── CheckpointError           a checkpoint that cannot be written, found or trusted
├── OutputError               the run's folder cannot be used
├── NonFiniteError            a loss or gradient that is not a number
├── WorkerError               another process of the run ended, or does not answer
├── CallbackError             a callback raised something of its own
├── StoppedError              exit code 75: a signal came before the first step; start it again
└── UsageError                exit code 2: the call itself is wrong
    ├── ConfigError           one or more faults of a config, all reported at once
    └── ComponentError        a plugin offers something that breaks the contract
        ├── UnknownComponentError
        ├── DuplicateComponentError
        └── PluginLoadError
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

STOPPED = 75
"""Exit code of a run that stopped early and can be resumed: ``EX_TEMPFAIL`` of sysexits.h, as requeueing schedulers expect."""


class MtError(Exception):
    """Base of every error that a user can act on."""

    exit_code = 1


class DataError(MtError):
    """A row, file or folder of rows is unusable."""


class WeightsError(MtError):
    """Weights that are missing, left over, of another shape, or unsafe to open."""


class CheckpointError(MtError):
    """A checkpoint that cannot be written, found or trusted."""


class OutputError(MtError):
    """The run's folder cannot be used."""


class NonFiniteError(MtError):
    """A loss or gradient that is not a number; nothing was updated."""


class WorkerError(MtError):
    """Another process of the run ended or does not answer, and this one cannot go on."""


class CallbackError(MtError):
    """A callback raised something of its own."""


class StoppedError(MtError):
    """A signal before the first step: there was nothing to save yet."""

    exit_code = STOPPED


class UsageError(MtError):
    """The call itself is wrong."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing that is wrong with a config.

    ``key`` is written as on the command line, without the leading dashes.
    """

    key: str
    problem: str
    fix: str = ""

    def __str__(self) -> str:
        head = f"{self.key}: " if self.key else ""
        return head + self.problem + (f" {self.fix}" if self.fix else "")


class ConfigError(UsageError):
    """One or more faults of a config, all reported at once. ``nearest`` is what to write instead, where it is known."""

    def __init__(self, faults: Iterable[Fault], *, nearest: str = "") -> None:
        self.faults: tuple[Fault, ...] = tuple(faults)
        lines = [str(fault) for fault in self.faults]
        if len(lines) > 1:
            lines = [f"{len(lines)} faults in the config:", *(f"  {line}" for line in lines)]
        self.nearest = nearest
        super().__init__("\n".join([*lines, f"Nearest that works: {nearest}"] if nearest else lines))


class ComponentError(UsageError):
    """A plugin offers something that breaks the contract."""


class UnknownComponentError(ComponentError):
    """No installed plugin offers this name."""


class DuplicateComponentError(ComponentError):
    """Several plugins offer this name, and the run has to say which one it means."""


class PluginLoadError(ComponentError):
    """A plugin that the run needs could not be loaded."""


def first_line(error: Exception) -> str:
    """The first line of what an error says; its kind where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def nearest(word: str, known: Sequence[str]) -> str:
    """The most similar known word, or an empty string."""
    matches = get_close_matches(word, known, n=1, cutoff=0.6)
    return matches[0] if matches else ""


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """``"Did you mean 'x'? "`` or an empty string."""
    near = nearest(word, known)
    return f"Did you mean {near!r}? " if near else ""
