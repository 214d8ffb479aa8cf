"""What a process of a run sets up for itself."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path

import pytest

COUNT_FAULTS = """
import resource, sys, torch
from mt_train.engine.processes import keep_freed_memory
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
        out = subprocess.run([sys.executable, "-c", COUNT_FAULTS, how], check=True, capture_output=True, timeout=600)
        return int(out.stdout)

    plain = faults("plain")
    # The heap may still grow once or twice, and on a busy machine a thread may take an arena of its own: the best of three.
    assert any(faults("kept") < plain / 3 for _ in range(3))


@pytest.mark.parametrize(
    ("port", "says"),
    [("taken", "another program listens there; set MASTER_PORT to a free port"), ("", "MASTER_PORT is not set")],
)
def test_a_port_that_is_taken_or_missing_is_named_with_what_to_do(port: str, says: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = {"MASTER_ADDR": "127.0.0.1", "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
        address |= {"MASTER_PORT": str(taken.getsockname()[1])} if port else {}
        result = subprocess.run(
            [sys.executable, "-m", "mt_train.cli.train", "--model", "llama", "--output", "none"],
            env={**os.environ, **address},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    assert result.returncode == 2
    assert "rank 0 cannot meet the other processes at 127.0.0.1:" in result.stderr
    assert says in result.stderr
    assert "Traceback" not in result.stderr


SHARED = Path(__file__).with_name("calls_worker.py")


def test_texts_and_groups_of_all_ranks_take_as_many_calls_as_those_of_few(tmp_path: Path) -> None:
    """Four ranks: each hears all texts in order by two sums, and makes the one group that it is in, which adds up its own ranks alone."""
    processes = [
        subprocess.Popen(
            [sys.executable, str(SHARED), str(rank), "4", str(tmp_path / "store")],
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(4)
    ]
    found = [json.loads(process.communicate(timeout=300)[0]) for process in processes]
    for rank, (texts, told, made, value) in enumerate(found):
        assert texts == [["", "", "é2é2", "é3é3é3"], [""] * 4]
        assert told == ["all_reduce"] * 3
        assert made == ["new_group"]
        assert value == (11.0 if rank < 2 else 1100.0)
