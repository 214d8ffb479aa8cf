"""Rendezvous of the processes of a run: over which network, and what it means when one loses the others."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import socket
import struct
import sys
import textwrap
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, HashStore

from mt_core.errors import UsageError, WorkerError, first_line

STORE_VARIABLE = "MT_STORE"
"""File through which the processes of one machine meet, when our own launcher started them."""


def join_processes(backend: str, timeout: timedelta, rank: int, world: int) -> None:
    """Join the processes of the run. Raises ``UsageError`` that names the address when that fails."""
    store = os.environ.get(STORE_VARIABLE)
    if world > 1 and store and not Path(store).parent.is_dir():  # torch would try for five minutes
        raise _rendezvous_error(rank, timeout, f"{Path(store).parent} is gone, where the launcher lets them meet")
    try:
        dist.init_process_group(backend, timeout=timeout, rank=rank, world_size=world, **_rendezvous_arguments(world))
    except (dist.DistNetworkError, dist.DistStoreError, ValueError) as error:
        reason = first_line(error)
        if STORE_VARIABLE in os.environ:
            raise _rendezvous_error(rank, timeout, reason) from error
        address = ":".join(os.environ.get(name, f"({name} is not set)") for name in ("MASTER_ADDR", "MASTER_PORT"))
        if "EADDRINUSE" in reason:
            reason = "another program listens there; set MASTER_PORT to a free port (torchrun: --master-port)"
        if "timed out" in reason.lower():
            reason += f" Start all nodes within --parallel.timeout-seconds ({timeout.total_seconds():g})."
        raise UsageError(f"rank {rank} cannot meet the other processes at {address}: {reason}") from error
    except RuntimeError as error:
        if STORE_VARIABLE in os.environ:
            raise peer_error(error, rank) or _rendezvous_error(rank, timeout, first_line(error)) from error
        raise WorkerError(
            f"rank {rank} on {platform.node()} met the other processes, and then could not connect to one"
            f" ({_shorten_reason(first_line(error))}). Either that one has ended, and says why, or the nodes cannot reach one another:"
            " set GLOO_SOCKET_IFNAME to the network interface that joins them (`ip addr` lists them)"
        ) from error


def _rendezvous_error(rank: int, timeout: timedelta, reason: str) -> WorkerError:
    """Return the error for processes of our own launcher that do not come together: one has ended, hangs, or is very slow."""
    return WorkerError(
        f"rank {rank} did not meet the other processes of this machine: {reason}. One of them has ended, and says why, or did not start"
        f" within --parallel.timeout-seconds ({timeout.total_seconds():g})"
    )


def _rendezvous_arguments(world: int) -> dict[str, Any]:
    """Alone without a network; through a file under our launcher; through ``MASTER_ADDR`` under any other."""
    if world == 1:
        return {"store": HashStore()}
    if store := os.environ.get(STORE_VARIABLE):
        return {"store": FileStore(store, world)}
    return {"init_method": "env://"}


def network_interface(world: int) -> str:
    """The network interface towards ``MASTER_ADDR``, or nothing where that cannot be told.

    gloo by itself takes the one of the host's own name, which many systems give a loopback address: other nodes then cannot
    reach it. Only primary IPv4 addresses are looked at.
    """
    master = os.environ.get("MASTER_ADDR")
    if world == 1 or STORE_VARIABLE in os.environ or not master or sys.platform != "linux":
        return ""
    import fcntl

    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((master, 9))  # sends nothing
            here = socket.inet_aton(probe.getsockname()[0])
            for _, name in socket.if_nameindex():
                with contextlib.suppress(OSError):  # an interface without an address
                    if fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()))[20:24] == here:
                        return name
    except OSError:  # an address without a route or a name unknown here: the rendezvous reports that
        return ""
    return ""


_SIOCGIFADDR = 0x8915
"""Asks Linux for the address of an interface (netdevice(7))."""


def peer_error(error: RuntimeError, rank: int) -> WorkerError | None:
    """Return the error for a collective that fails because another process has ended or hangs; ``None`` for any other error.

    gloo raises plain ``RuntimeError``s, known by their text; NCCL's are ``DistError``s.
    """
    reason = first_line(error)
    if not (isinstance(error, dist.DistError) or "gloo" in reason):
        return None
    shown = _shorten_reason(reason)
    if "timed out" in reason.lower():
        return WorkerError(
            f"rank {rank} waited --parallel.timeout-seconds for another process, which did not answer ({shown}). Look at"
            " the rank that says nothing here: kill -USR2 makes a process print where it is"
        )
    return WorkerError(f"rank {rank} lost the connection to another process, which ended first and says why ({shown})")


def _shorten_reason(reason: str) -> str:
    """Drop the place in gloo's source, and its advice."""
    return textwrap.shorten(_SOURCE_LINE.sub("", reason).partition(". This is typically")[0], 160, placeholder=" …")


_SOURCE_LINE = re.compile(r"\[[^] ]*\.(cc|h):\d+\] ")
"""Place in gloo's own source where an error was raised."""
