"""Turns errors into one message and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from mt_core.config.secrets import redact
from mt_core.errors import MtError, WorkerError

ERRORS_VARIABLE = "MT_ERRORS"
"""Folder in which the processes of a run leave their last words, so that the launcher tells a shared fault once."""
SAID, LOST = ".said", ".lost"
"""What ``rank-N`` there ends with: its own fault, or that it could not go on without another process."""


def guarded(action: Callable[[], int], *, debug: bool) -> int:
    """Run a command. No traceback is shown unless ``debug``."""
    wait_politely()
    try:
        return action()
    except WorkerError as error:
        _report(str(error), debug, kind=LOST)
        return error.exit_code
    except MtError as error:
        _report(str(error), debug)
        return error.exit_code
    except KeyboardInterrupt:
        _report("interrupted", debug=False)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:  # noqa: BLE001 - the last line of defence; the traceback is in the log and with --debug
        _report(f"unexpected {type(error).__name__}: {error} (--debug shows where; the run's logs/ have it too)", debug)
        return 1


def wait_politely() -> None:
    """Let threads that wait for one another give up the processor soon, unless the user has set how they wait.

    GNU OpenMP spins some milliseconds: with one busy neighbour on two cores a small model then trained ten times slower
    (docs/log.md). Read when torch is loaded, so it has to be set before.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def _report(text: str, debug: bool, kind: str = SAID) -> None:
    if debug:
        print(redact(traceback.format_exc()), file=sys.stderr)
    rank, folder = os.environ.get("RANK", "0"), os.environ.get(ERRORS_VARIABLE)
    if folder:
        (Path(folder) / f"rank-{rank}{kind}").write_text(redact(text), encoding="utf-8")
        if kind == LOST:
            return  # the launcher knows which process ended first, and says that instead
    where = "" if rank == "0" else f" (rank {rank})"
    print(redact(f"error{where}: {text}"), file=sys.stderr, flush=True)
