"""A model that a thread of its own opened leaves no threads of OpenMP behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mt_core import UsageError
from mt_plugin_serve.threads import run_in_thread

COUNT = """
import os, sys, time, torch
from mt_plugin_serve.threads import run_in_thread

def open_model():
    return torch.ones(512, 512) @ torch.ones(512, 512)

def count():
    return len(os.listdir("/proc/self/task"))

before = count()
run_in_thread(open_model) if sys.argv[1] == "thread" else open_model()
deadline = time.monotonic() + 10  # a thread is joined a moment before the system has ended it
while sys.argv[1] == "thread" and count() > before and time.monotonic() < deadline:
    time.sleep(0.01)
print(count() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads as Linux lists them")
@pytest.mark.parametrize(("where", "left"), [("main", 1), ("thread", 0)])
def test_openmp_threads_end_with_the_thread_that_opened_a_model(where: str, left: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COUNT, where],
        env={**os.environ, "OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == left, done.stderr


def test_what_the_work_returns_and_raises() -> None:
    assert run_in_thread(lambda: 7) == 7

    def fail() -> None:
        raise UsageError("no such model")

    with pytest.raises(UsageError, match="no such model"):
        run_in_thread(fail)
