"""Which network the processes of a run use, and what a lost one looks like to the others."""

from __future__ import annotations

import socket
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from mt_core.errors import WorkerError
from mt_train.engine.rendezvous import STORE_VARIABLE, join_processes, network_interface, peer_error


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the addresses of interfaces")
@pytest.mark.parametrize(
    ("master", "world", "name"),
    [
        ("127.0.0.1", 2, "lo"),
        ("localhost", 2, "lo"),
        ("no.such.host.invalid", 2, ""),
        ("", 2, ""),
        ("127.0.0.1", 1, ""),
    ],
)
def test_the_interface_is_the_one_that_leads_to_the_master(
    master: str, world: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MT_STORE", raising=False)
    monkeypatch.setenv("MASTER_ADDR", master)
    assert network_interface(world) == name
    assert not name or name in {each for _, each in socket.if_nameindex()}


GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] "


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError(GLOO + "Connection closed by peer [10.0.0.2]:4513. This is typically caused by x."), "4513)"),
        (RuntimeError(GLOO + "Timed out waiting 8000ms for recv operation to complete"), "did not answer (Timed out"),
        (dist.DistBackendError("NCCL communicator was aborted on rank 0."), "lost the connection to another process"),
    ],
)
def test_a_collective_that_fails_says_that_another_process_is_to_blame(error: RuntimeError, said: str) -> None:
    found = peer_error(error, 3)
    assert found is not None
    assert str(found).startswith("rank 3 ")
    assert said in str(found)
    assert "pair.cc" not in str(found)


def test_other_errors_are_no_loss() -> None:
    assert peer_error(RuntimeError("mat1 and mat2 shapes cannot be multiplied"), 0) is None
    assert peer_error(NotImplementedError(), 0) is None


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("store", "Wait timeout"),
        ("gone/store", "gone is gone, where the launcher lets them meet"),
        (".", "Is a directory"),
    ],
    ids=["nobody comes", "the launcher's folder is gone", "a folder in the place of the file"],
)
def test_processes_of_one_machine_that_do_not_meet_say_so_in_time(
    place: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch itself says ``Wait timeout``, and looks for a folder that is not there for five minutes."""
    monkeypatch.setenv(STORE_VARIABLE, str(tmp_path / place))
    with pytest.raises(WorkerError) as raised:
        join_processes("gloo", timedelta(seconds=1), 0, 2)
    assert "rank 0 did not meet the other processes of this machine: " in str(raised.value)
    assert reason in str(raised.value)
    assert "within --parallel.timeout-seconds (1)" in str(raised.value)
