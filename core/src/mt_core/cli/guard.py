"""Turns errors into one message and an exit code."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mt_core.config.secrets import redact
from mt_core.config.terminal import show_standard_streams
from mt_core.errors import INTERRUPTED, MtError, WorkerError, did_you_mean, of_system, refuse_exit, show_value
from mt_core.tracking.streams import make_printable

ERRORS_VARIABLE = "MT_ERRORS"
"""Folder in which the processes of a run leave their last words, so that the launcher tells a shared fault once."""
SAID, LOST = ".said", ".lost"
"""Endings of the file ``rank-N``: a fault of its own, or that it could not go on without another process."""

SHELLS = ("bash", "zsh", "fish")
_PATHS = re.compile("FILE|FOLDER|RUN|PATH|DIR|SOURCE|OUT|BASE")
"""Words for files and folders, in what a parser calls the values of an option."""


def run_command(action: Callable[[], int], *, debug: bool) -> int:
    """Run a command, including its parsing, and return the exit code. No traceback is shown unless ``debug``.

    Nothing is shown that a terminal would obey, or that the console cannot encode.
    """
    make_printable()
    with show_standard_streams():
        return _run(action, debug)


def parse_and_run(
    parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int], argv: Sequence[str] | None
) -> int:
    """Parse the command line and run a command; messages of the parser are shown like all others."""
    make_printable()
    parser.add_argument(
        "--completion", choices=SHELLS, action=_PrintScript, help="print what completes this in a shell"
    )
    with show_standard_streams():
        arguments, unknown = parser.parse_known_args(argv)  # outside of the guard: --help ends the process by itself
        if unknown:
            known = [name for action in _actions(parser) for name in action.option_strings]
            parser.error(f"unrecognized arguments: {' '.join(unknown)}. {did_you_mean(unknown[0], known)}".rstrip(". "))
        return run_command(lambda: run(arguments), debug=arguments.debug)


class _PrintScript(argparse.Action):
    """``--completion SHELL`` prints the script and ends the command."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: Any = None) -> None:
        import shtab  # here: nothing else needs it

        for action in _actions(parser):
            if _PATHS.search(str(action.metavar)):
                vars(action)["complete"] = shtab.FILE
        print(shtab.complete(parser, shell=values).replace("(*)", "*"))  # zsh: several RUNs, and not one
        parser.exit()


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        for below in action.choices.values() if isinstance(action, argparse._SubParsersAction) else ():
            yield from _actions(below)


def _run(action: Callable[[], int], debug: bool) -> int:
    wait_politely()
    try:
        return _without_exits(action)
    except WorkerError as error:
        _report(str(error), debug, kind=LOST)
        return error.exit_code
    except MtError as error:
        _report(str(error), debug)
        return error.exit_code
    except KeyboardInterrupt:
        _report("interrupted", debug=False)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        _report(_unexpected(error) if error.filename is None else str(of_system(error)), debug)
        return 1
    except UnicodeEncodeError as error:  # half of a character, which JSON and Python can have, and no file's name
        _report(
            f"{show_value(error.object)} cannot be written as {error.encoding}: {error.reason}; take out the character",
            debug,
        )
        return 2
    except Exception as error:  # noqa: BLE001 - the last line of defence; the traceback is in the log and with --debug
        interrupted = type(error).__name__ == "SchemaError" and "KeyboardInterrupt" in str(error)  # pydantic wraps one
        _report("interrupted" if interrupted else _unexpected(error), debug)
        return INTERRUPTED if interrupted else 1


def _unexpected(error: Exception) -> str:
    import traceback

    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{last.filename}, line {last.lineno}"
    return (
        f"unexpected {type(error).__name__}: {error} ({place}; --debug shows where from; the run's logs/ have it too)"
    )


def _without_exits(action: Callable[[], int]) -> int:
    """The action's exit code: a plugin's ``sys.exit(0)`` on the way is a failure, and no success."""
    try:
        return action()
    except SystemExit as error:
        refuse_exit(error)


def wait_politely() -> None:
    """Let threads that wait for one another give up the processor soon, unless the user has set how they wait.

    GNU OpenMP spins some milliseconds: with one busy neighbour on two cores a small model then trained ten times slower
    (docs/log.md). Read when torch is loaded, so it has to be set before.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")


def _report(text: str, debug: bool, kind: str = SAID) -> None:
    if debug:
        import traceback

        print(redact(traceback.format_exc()), file=sys.stderr)
    rank, folder = os.environ.get("RANK", "0"), os.environ.get(ERRORS_VARIABLE)
    if folder and _leave(Path(folder) / f"rank-{rank}{kind}", redact(text)) and kind == LOST:
        return  # the launcher knows which process ended first, and says that instead
    where = "" if rank == "0" else f" (rank {rank})"
    print(redact(f"error{where}: {text}"), file=sys.stderr, flush=True)


def _leave(path: Path, text: str) -> bool:
    """Leave last words for the launcher; false where its folder is gone or full, and they are only said."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError:
        return False
    return True
