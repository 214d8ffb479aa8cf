"""What makes a step a trial: a lack of memory that is known as such, with less memory than there is, and without the others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mt_train.engine import memory_probe


def test_a_lack_of_memory_is_told_from_other_errors() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60)
    assert memory_probe.is_out_of_memory(caught.value)
    assert memory_probe.is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert memory_probe.is_out_of_memory(MemoryError())
    assert not memory_probe.is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not memory_probe.is_out_of_memory(ValueError("DefaultCPUAllocator"))


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_a_cpu_is_out_of_memory_before_the_machine_is() -> None:
    """In a process of its own: in this one, memory that other tests have freed may hold what should not fit."""
    worker = Path(__file__).with_name("memory_limit_worker.py")
    done = subprocess.run([sys.executable, str(worker)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"small": True, "large": False, "large, afterwards": True}


@pytest.mark.skipif(sys.platform != "linux", reason="read where Linux has it")
def test_available_memory_is_that_of_a_container_where_there_is_one() -> None:
    assert 0 < memory_probe.available_memory() < 2**50


def test_what_else_goes_wrong_is_raised() -> None:
    with pytest.raises(RuntimeError, match="size of tensor"):
        memory_probe.fits(lambda: torch.ones(2) + torch.ones(3))
