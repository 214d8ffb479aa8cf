"""Work in a thread that ends with it."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def run_in_thread(work: Callable[[], T]) -> T:
    """Do the work in a thread of its own, wait for it, and return or raise what it does.

    OpenMP keeps a pool of threads for each thread that computes, as long as that one lives, and as soon as there are more of them than
    processors it lets all of them sleep between two products: with 2 threads the model's thread takes up to twice as long for a step when
    the main thread has opened the model (docs/log.md, "mt-serve with two threads"). So the thread that opens it has to end.
    """
    results: list[T] = []
    faults: list[BaseException] = []
    context = contextvars.copy_context()

    def run() -> None:
        try:
            results.append(context.run(work))
        except BaseException as fault:  # noqa: BLE001 - raised again below
            faults.append(fault)

    thread = threading.Thread(target=run, name="open", daemon=True)  # daemon: Ctrl-C has not to wait for it
    thread.start()
    thread.join()
    if faults:
        raise faults[0]
    return results[0]
