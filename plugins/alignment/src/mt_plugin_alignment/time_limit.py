"""A bound on the time of a function that somebody else wrote."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

SIGNAL = signal.SIGVTALRM
"""Ours alone while a function runs: libraries that bound themselves take SIGALRM, and profilers SIGPROF."""
SIGNAL_SECONDS = 1.0
"""Seconds between two signals, for a function that catches everything."""


class TimeLimitReached(BaseException):
    """The time is over. No ``Exception``, so that a function that catches those does not go on."""


def call_within(seconds: float | None, function: Callable[[], T]) -> T:
    """Call a function, and raise ``TimeLimitReached`` after so many seconds; ``None`` is no bound.

    In the main thread a signal ends it wherever Python, a sleep or a socket waits; a library that never comes back to Python goes on.
    Elsewhere, where Python delivers no signals, it runs in a thread of its own, which is left behind.
    """
    if seconds is None:
        return function()
    in_main = threading.current_thread() is threading.main_thread()
    return _interrupt(seconds, function) if in_main else _run_in_thread(seconds, function)


def _interrupt(seconds: float, function: Callable[[], T]) -> T:
    done, caller = threading.Event(), threading.get_ident()

    def end(number: int, frame: object) -> None:
        if not done.is_set():
            raise TimeLimitReached

    def watch() -> None:
        wait = seconds
        while not done.wait(wait):
            signal.pthread_kill(caller, SIGNAL)
            wait = SIGNAL_SECONDS

    before = signal.signal(SIGNAL, end)
    watcher = threading.Thread(target=watch, name="time limit", daemon=True)
    watcher.start()
    try:
        try:
            return function()
        finally:
            done.set()
    finally:  # again: the signal may have come between the return and the line above
        done.set()
        watcher.join()
        signal.signal(SIGNAL, signal.SIG_DFL if before is None else before)


def _run_in_thread(seconds: float, function: Callable[[], T]) -> T:
    found: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            found.append(function())
        except BaseException as error:  # noqa: BLE001 - whatever it is, the caller gets it
            raised.append(error)

    worker = threading.Thread(target=run, name="reward", daemon=True)
    worker.start()
    worker.join(seconds)
    if worker.is_alive():
        raise TimeLimitReached
    if raised:
        raise raised[0]
    return found[0]
