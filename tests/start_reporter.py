"""Says what its process is, or ends in some way. Run by test_forked_starts.py."""

from __future__ import annotations

import atexit
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time


def report() -> None:
    print(
        json.dumps(
            {
                "argv": sys.argv,
                "orig_argv": sys.orig_argv,
                "folder": os.getcwd(),
                "environment": dict(os.environ),
                "path": sys.path,
                "name": __name__,
                "file": __file__,
                "main": sys.modules["__main__"].__dict__ is globals(),
                "given": sys.stdin.read(),
                "encodings": [(each.encoding, each.errors) for each in (sys.stdin, sys.stdout, sys.stderr)],
                "open": [handle for handle in range(3, 20) if is_open(handle)],
                "handler": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
                "blocked": [*signal.pthread_sigmask(signal.SIG_BLOCK, [])],
                "threads": threading.active_count(),
            }
        )
    )


def is_open(handle: int) -> bool:
    return os.path.exists(f"/proc/self/fd/{handle}") and "/dev/" not in os.readlink(f"/proc/self/fd/{handle}")


def family() -> None:
    leads = os.getpgrp() == os.getpid()
    said = {"parent": os.getppid(), "group": os.getpgrp(), "session": os.getsid(0), "leads": leads}
    print(json.dumps(said))


def draw() -> None:
    import numpy as np
    import torch

    print(json.dumps({"random": random.random(), "numpy": np.random.rand(), "torch": torch.rand(()).item()}))


def sync() -> None:
    """Sync an open file, and one that is closed."""
    with open(__file__) as file:
        said = [os.fsync(file), os.fsync(file.fileno())]
    try:
        os.fsync(1000)
    except OSError as error:
        said.append(error.strerror)
    print(json.dumps({"by": getattr(os.fsync, "__module__", None), "said": said}))


def launch(script: str) -> None:
    command = [sys.executable, script, "family"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, process_group=0) for _ in range(2)]
    said = [json.loads(process.communicate()[0]) for process in processes]
    codes = [process.returncode for process in processes]
    print(json.dumps({"pid": os.getpid(), "parents": [each["parent"] for each in said], "codes": codes}))


def end(how: str, *more: str) -> None:
    print("before", end="")  # no line: it has to be flushed
    if how == "exit":
        sys.exit(int(more[0]) if more[0].isdigit() else more[0])
    if how == "raise":
        raise ValueError("of the program")
    if how == "interrupt":
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has it ignored in what it starts with &
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    if how == "kill":
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "late":
        atexit.register(print, "at exit")
    if how == "thread":
        threading.Timer(0.2, print, ["of a thread"]).start()


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "wait":
        os.write(int(rest[0]), b"waiting")
        time.sleep(60)
    elif what == "ignored":
        print(signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN)
    elif what in ("report", "family", "draw", "sync"):
        globals()[what]()
    elif what == "launch":
        launch(*rest)
    else:
        end(what, *rest)
