"""What a process of a run sets up for itself."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

COUNT_FAULTS = """
import resource, sys, torch
from mt_core.engine.processes import keep_freed_memory
assert sys.argv[1] == "plain" or keep_freed_memory()
def step(): return torch.ones(16 << 20).sum()  # 64 MiB, 16384 pages
for _ in range(4): step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10): step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_memory_freed_by_one_step_serves_the_next_without_page_faults() -> None:
    def faults(how: str) -> int:
        out = subprocess.run([sys.executable, "-c", COUNT_FAULTS, how], check=True, capture_output=True, timeout=120)
        return int(out.stdout)

    assert faults("kept") < faults("plain") / 3, "the heap may still grow once or twice"
