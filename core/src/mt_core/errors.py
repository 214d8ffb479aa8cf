"""The exceptions of the framework. Each message says what, got, allowed and fix.

MtError                       exit code 1: something failed
├── DataError                 a row, file or folder of rows is unusable
├── WeightsError              weights that are missing, left over or of another shape
├── CheckpointError           a checkpoint that cannot be written, found or trusted
├── OutputError               the run's folder cannot be used
├── NonFiniteError            a loss or gradient that is not a number
├── WorkerError               another process of the run ended, or does not answer
├── CallbackError             a callback raised something of its own
├── PluginExitError           code of a plugin asked the process to end
├── StoppedError              exit code 75: a signal came before the first step; start it again
└── UsageError                exit code 2: the call itself is wrong
    ├── ConfigError           one or more faults of a config, all reported at once
    └── ComponentError        a plugin offers something that breaks the contract
        ├── UnknownComponentError
        ├── DuplicateComponentError
        └── PluginLoadError
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType
from typing import NamedTuple, NoReturn

OURS = frozenset({"mt_core", "mt_train", "mt_tools", "mt_conformance", "mt_plugin_standard"})
"""Packages whose code is no stranger's."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""
STOPPED = 75
"""Exit code of a run that stopped early and can be resumed: ``EX_TEMPFAIL`` of sysexits.h, as requeueing schedulers expect."""


class MtError(Exception):
    """Base of every error that a user can act on."""

    exit_code = 1


class DataError(MtError):
    """A row, file or folder of rows is unusable."""

    def of_row(self, name: object) -> DataError:
        """Return the error with the row's name in front; the error itself where it begins with it."""
        if str(self).startswith(f"{name}:"):
            return self
        named = DataError(f"{name}: {self}")
        named.__cause__ = self
        return named


class WeightsError(MtError):
    """Weights that are missing, unexpected, of another shape, or unsafe to open."""


class CheckpointError(MtError):
    """A checkpoint that cannot be written, found or verified."""


class OutputError(MtError):
    """The run's folder cannot be used."""


class NonFiniteError(MtError):
    """A loss or gradient that is not a number; nothing was updated."""


class WorkerError(MtError):
    """Another process of the run ended or does not answer, and this one cannot go on."""


class CallbackError(MtError):
    """A callback raised something of its own."""


class PluginExitError(MtError):
    """Code of a plugin asked the process to end (``sys.exit``); only the run may decide that."""


class StopNow(BaseException):
    """A signal before the first step. No ``Exception``: nothing on the way may take it for a failure of its own."""


class StoppedError(MtError):
    """A signal before the first step, when there is nothing to save yet."""

    exit_code = STOPPED


class UsageError(MtError):
    """A wrong command line or function call."""

    exit_code = 2


class Fault(NamedTuple):
    """One fault of a config.

    ``key`` is written as on the command line, without the leading dashes.
    """

    key: str
    problem: str
    fix: str = ""

    def __str__(self) -> str:
        head = f"{self.key}: " if self.key else ""
        return head + self.problem + (f" {self.fix}" if self.fix else "")


MOST_FAULTS, LONGEST_FAULT = 50, 4000
"""Faults that a message lists, and the characters of one: a file of something else than a config has more than a screen."""


class ConfigError(UsageError):
    """One or more faults of a config, all reported at once. ``nearest`` is the key or value to write instead, if it is known."""

    def __init__(self, faults: Iterable[Fault], *, nearest: str = "") -> None:
        self.faults: tuple[Fault, ...] = tuple(faults)
        lines = [cut(str(fault), LONGEST_FAULT) for fault in self.faults[:MOST_FAULTS]]
        if len(self.faults) > 1:
            more = len(self.faults) - len(lines)
            lines += [f"… and {more:,} more"] if more else []
            lines = [f"{len(self.faults):,} faults in the config:", *(f"  {line}" for line in lines)]
        self.nearest = nearest
        super().__init__("\n".join([*lines, f"Nearest that works: {nearest}"] if nearest else lines))


class ComponentError(UsageError):
    """A plugin offers a component that violates the contract."""


class UnknownComponentError(ComponentError):
    """No installed plugin offers this name."""


class DuplicateComponentError(ComponentError):
    """Several plugins offer this name, and the run has to say which one it means."""


class PluginLoadError(ComponentError):
    """A plugin that the run needs could not be loaded."""


def refuse_exit(error: BaseException, owners: Mapping[str, str] | None = None) -> NoReturn:
    """Raise a ``PluginExitError`` for what would end the process, with the place in the code that it comes from.

    ``owners`` are the components of each top-level package. A ``KeyboardInterrupt`` that is of none of them is a real one,
    and raised as it is; so are a ``StopNow``, and the exit of a library whose text nobody reads any more, as rich has it.
    """
    from traceback import walk_tb

    known = owners or {}
    frames = [(frame, line) for frame, line in walk_tb(error.__traceback__) if _is_foreign(frame)]
    named = [(frame, line) for frame, line in frames if _package(frame) in known]
    unread = isinstance(error.__context__, BrokenPipeError)
    if unread or isinstance(error, StopNow) or (isinstance(error, KeyboardInterrupt) and not named):
        raise error
    place, owner = "", "code of a plugin or library"
    if found := (named or frames)[-1:]:
        frame, line = found[0]
        owner = known.get(_package(frame), owner)
        place = f", in {frame.f_globals.get('__name__')}.{frame.f_code.co_qualname} (line {line} of {frame.f_code.co_filename})"
    raise PluginExitError(
        f"{owner} asked the process to end ({describe_error(error)}){place}. Only the run ends itself: raise an error there,"
        " or let a callback return Control(stop=True)"
    ) from error


def _is_foreign(frame: FrameType) -> bool:
    """Return whether a frame is neither ours nor Python's own."""
    return _package(frame) not in OURS | sys.stdlib_module_names


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def describe_error(error: BaseException) -> str:
    """``ValueError: what it says``, on one line."""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def cut(text: str, most: int) -> str:
    """The text, without its middle where it is longer than ``most`` characters."""
    return text if len(text) <= most else f"{text[: most // 2]} … {text[-(most // 3) :]}"


def show_value(value: object, most: int = 200) -> str:
    """Return how a message shows a value, whatever it is: cut where it is long, and a number of thousands of digits by its length."""
    if isinstance(value, int) and value.bit_length() > 1024:
        return f"a number of {int(value.bit_length() * 0.30103) + 1:,} digits"
    try:
        return cut(repr(value), most)
    except Exception:  # noqa: BLE001 - a stranger's object may raise anything, and the message is about something else
        return f"a {type(value).__name__}"


def of_system(error: OSError) -> MtError:
    """Return what the operating system refused, for a person: which file, why, and what to look at."""
    names = " and ".join(str(show_value(name)) for name in (error.filename, error.filename2) if name is not None)
    return MtError(
        f"{names} cannot be read or written: {error.strerror or error}; check the path, its permissions and the space on its disk"
    )


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its class if the message is empty."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def nearest(word: str, known: Sequence[str]) -> str:
    """The most similar known word, or an empty string."""
    from difflib import get_close_matches  # takes longer to import than a word that is right

    return next(iter(get_close_matches(word, known, n=1, cutoff=0.6)), "")


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """``"Did you mean 'x'? "`` or an empty string."""
    near = nearest(word, known)
    return f"Did you mean {near!r}? " if near else ""
