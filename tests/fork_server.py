"""A process that has imported everything and forks for each command: it starts in a tenth of a second of CPU, not in six.

Run by ``forked_starts.py``, which says what is forked. Each request is a JSON object with the open files of the new process.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import os
import random
import resource
import runpy
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from forked_starts import PRELOADED, Client, install, paths_of, skip_costly_parts

PATIENCE_SECONDS = 120.0


def serve(connection: socket.socket) -> dict[str, Any]:
    """Answer requests until the other side has gone. Returns in children only, with what they are to do."""
    while True:
        received = receive(connection)
        if received is None:
            os._exit(0)
        request, handles = received
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            connection.close()
            os.close(reading)
            if pid := os.fork():
                os.write(writing, pid.to_bytes(4, "little"))
                os._exit(0)  # so that the child is that of who asked
            become(request, handles)
            os.write(writing, b"ready")
            os.close(writing)
            return request
        for handle in (*handles, writing):
            os.close(handle)
        os.waitpid(between, 0)
        pid_and_more = b""
        while len(pid_and_more) < 9 and (more := os.read(reading, 9)):
            pid_and_more += more
        os.close(reading)
        connection.sendall(pid_and_more[:4])


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    try:
        head, handles, _, _ = socket.recv_fds(connection, 4, 64)
        if len(head) < 4:
            return None
        left = int.from_bytes(head, "little")
        content = b""
        while len(content) < left:
            content += connection.recv(left - len(content))
    except ConnectionError:
        return None
    return json.loads(content), handles


def become(request: Mapping[str, Any], handles: list[int]) -> None:
    """Have the parent, the files, the group and the environment that the new process would have had."""
    gone = time.monotonic() + PATIENCE_SECONDS
    while os.getppid() != request["parent"] and time.monotonic() < gone:
        time.sleep(0.0005)
    if request["session"]:
        os.setsid()
    else:
        os.setpgid(0, request["group"])
    take_over(handles, [0, 1, 2, *request["passed"]])
    for number in request["ignored"]:
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    for number, limit in request["limits"].items():
        resource.setrlimit(int(number), limit)
    if request["umask"] >= 0:
        os.umask(request["umask"])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()


def take_over(handles: list[int], numbers: list[int]) -> None:
    """Give each open file the number that it has in the new process."""
    above = [fcntl.fcntl(handle, fcntl.F_DUPFD, max(numbers) + 64) for handle in handles]
    for handle in handles:
        os.close(handle)
    for handle, number in zip(above, numbers, strict=True):
        os.dup2(handle, number, inheritable=True)
        os.close(handle)


def run(request: Mapping[str, Any], own_paths: list[str]) -> None:
    """Do what ``python`` would: find modules, know the words, have fresh random numbers, and be ``__main__``."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=stream is sys.stderr or stream.isatty())  # type: ignore[union-attr]
    random.seed()
    sys.modules["numpy"].random.seed()
    sys.modules["torch"].default_generator.seed()
    importlib.import_module("tempfile").tempdir = None
    sys.path[:] = [request["first_path"], *paths_of(os.environ, os.getcwd()), *own_paths]
    importlib.invalidate_caches()
    sys.orig_argv[:] = request["words"]
    main = sys.modules["__main__"] = ModuleType("__main__")
    sys.argv[:] = request["argv"]
    if (
        request.get("module") == "pytest"
    ):  # it warns of anyio, which brings it a plugin and has been imported with others
        sys.argv[1:1] = ["-W", "ignore:Module already imported so cannot be rewritten"]
    if "module" in request:
        sys.modules.pop(request["module"], None)  # it is run once more, as __main__
        runpy._run_module_as_main(request["module"])  # type: ignore[attr-defined]
    else:
        main.__dict__.update(__builtins__=__builtins__, __file__=request["script"])
        exec(compile(Path(request["script"]).read_bytes(), request["script"], "exec"), main.__dict__)


def end(action: Callable[[], object]) -> NoReturn:
    """Do it and end as Python does after a program, but leave memory to the kernel: taking all modules apart would copy it."""
    code: Any = 0
    try:
        action()
    except SystemExit as error:
        code = error.code
    except BaseException as error:  # noqa: BLE001 - what Python does with whatever a program raises
        sys.excepthook(type(error), error, error.__traceback__)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit((code or 0) & 0xFF)


def fork_own_server(passed: list[int]) -> tuple[Client | None, socket.socket | None]:
    """In this process, the client of a fork of it that stays as it is; in the fork, the connection that it has to serve."""
    ours, its = socket.socketpair()
    if os.fork():
        its.close()
        return Client(ours), None
    ours.close()
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in passed:
        os.close(number)
    take_over([os.open(os.devnull, os.O_RDWR) for _ in range(3)], [0, 1, 2])
    return None, its


def preload() -> None:
    """Import what commands import, and stay what can be forked."""
    torch, deepspeed_import = (
        importlib.import_module("torch"),
        importlib.import_module("mt_train.engine.deepspeed_import"),
    )
    deepspeed_import.import_deepspeed(torch.device("cpu"))  # as every run does: without torch's compiler
    skip_costly_parts()
    for name in PRELOADED:
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)
    sys.modules["mt_core.plugins.host"].PluginHost.discover()
    for name in ("mt_core", "mt_train", "mt_plugin_standard", "mt_plugin_llama"):  # the code of most runs
        with suppress(ModuleNotFoundError):
            sys.modules["mt_train.plugins.lock"].code_hash(name)
    for number in range(3, 32):  # a copy of standard error that an import has kept: no child may have it open
        with suppress(OSError):
            if os.path.sameopenfile(number, 2):
                os.close(number)
    gc.collect()
    gc.freeze()  # or every fork walks and copies all of it
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads: forks of them would wait for what no longer runs"


def main() -> None:
    """Import everything and serve; in each child, be what was asked for."""
    connection: socket.socket | None = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # some libraries print when they are imported
    own_paths = sys.path[1 + len(paths_of(os.environ, os.getcwd())) :]
    preload()
    while connection is not None:
        request, client = serve(connection), None
        connection = None
        if "RANK" not in request["environment"]:  # one of several that a launcher started starts none
            client, connection = fork_own_server(request["passed"])
    if client is not None:
        install(client)
    end(lambda: run(request, own_paths))


if __name__ == "__main__":
    main()
