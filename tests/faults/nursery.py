"""A process that imports everything once and forks for every command, so that a real run costs a second and not five.

Reads one JSON request a line. The child's process id and, once it has ended, its code (negative: a signal) come as files
beside what it said. What is done to a child is done with what Python itself offers (audit hooks, resource limits): nothing in the core
knows of it.
"""

from __future__ import annotations

import builtins
import errno
import gc
import importlib
import io
import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

PRELOADED = (
    "mt_train.api",
    "mt_train.assemble.load",
    "mt_train.assemble.run",
    "mt_train.assemble.session",
    "mt_train.assemble.steps",
    "mt_tools.cli.checkpoint",
    "mt_tools.cli.eval",
    "mt_tools.cli.generate",
    "mt_tools.cli.report",
    "mt_train.cli.train",
    "mt_plugin_llama.model",
    "matplotlib.figure",
    "torch.utils.tensorboard",
    "transformers.models.auto.tokenization_auto",
    "transformers.tokenization_utils_tokenizers",
    "transformers.utils.chat_template_utils",
    "deepspeed",
)
CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.chmod", "os.truncate"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def changed_path(event: str, arguments: tuple[Any, ...]) -> str:
    """The path that an audited operation is about to change; nothing for one that only reads."""
    if event == "open":
        path, mode, flags = arguments
        written = any(letter in mode for letter in "wax+") if isinstance(mode, str) else flags & WRITING
        return os.fspath(path) if written and isinstance(path, str | os.PathLike) else ""
    if event in CHANGES:
        path = arguments[1] if event == "os.rename" else arguments[0]
        return os.fspath(path) if isinstance(path, str | os.PathLike) else ""
    return ""


class Operations:
    """Counts the operations that change files under a folder, from the ``from_save`` on, and acts at the ``at``-th."""

    def __init__(self, folder: str, act: Callable[[str], None], *, at: int | None, diary: str) -> None:
        self.folder, self.act, self.at = os.path.realpath(folder), act, at
        self.diary = os.open(diary, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.count, self.busy = 0, threading.Lock()

    def within(self, path: str) -> bool:
        return os.path.abspath(path).startswith(self.folder)

    def note(self, text: str) -> None:
        os.write(self.diary, text.encode() + b"\n")

    def happen(self, what: str, path: str) -> None:
        with self.busy:
            self.count += 1
            due = self.count == self.at
        if due:
            self.note(f"at {self.count}: {what} {path}")
            self.act(what)


def watch_saves(operations: Operations) -> None:
    """Notes when a save begins and when ``latest`` has named it; counts its operations only."""
    state = {"step": "", "naming": False}

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if state["naming"] and event == "open" and str(arguments[0]).endswith("checkpoints"):
            operations.note(f"saved {state['step']}")  # the folder is synced: the rename before it is done
            state.update(naming=False)
        path = changed_path(event, arguments)
        if not path or not operations.within(path):
            return
        if event == "os.mkdir" and "/.tmp-step-" in path and path.endswith("/model"):
            state["step"] = path.split("/.tmp-")[1].split("/")[0]
            operations.note(f"saving {state['step']}")
        if event == "os.rename" and path.endswith("/latest"):
            state["naming"] = True
        operations.happen(event, path)

    sys.addaudithook(hook)


def watch_everything(operations: Operations) -> None:
    """Counts every operation that changes a file, with each write and each sync."""
    import safetensors.torch

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        path = changed_path(event, arguments)
        if path and operations.within(path):
            operations.happen(event, path)

    def counted(honest: Callable[..., Any], what: str, path: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            operations.happen(what, path)
            return honest(*arguments, **named)

        return call

    honest_open, honest_sync, honest_save = io.open, os.fsync, safetensors.torch.save_file

    def opened(file: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        handle = honest_open(file, mode, *arguments, **named)
        if isinstance(file, str | os.PathLike) and set(mode) & set("wax+") and operations.within(os.fspath(file)):
            handle.write = counted(handle.write, "write", os.fspath(file))
        return handle

    def synced(handle: int) -> None:
        path = os.readlink(f"/proc/self/fd/{handle}")
        if operations.within(path):
            operations.happen("fsync", path)
        honest_sync(handle)

    def saved(tensors: Any, filename: str, *arguments: Any) -> None:
        operations.happen("save_file", filename)
        honest_save(tensors, filename, *arguments)

    io.open = builtins.open = opened  # type: ignore[assignment]
    os.fsync, safetensors.torch.save_file = synced, saved  # type: ignore[assignment]
    sys.addaudithook(hook)


def die(what: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def fail(what: str) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def child(request: dict[str, Any]) -> int:
    """Run one command as its own process would."""
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{request['said']}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(request["folder"])
    os.environ.update(request.get("environment", {}))
    if clock := request.get("clock"):
        honest = time.time
        time.time = lambda: honest() + clock  # type: ignore[assignment]
    if limit := request.get("largest_file"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    if watched := request.get("watch"):
        action = {"die": die, "fail": fail}[watched["act"]]
        operations = Operations(watched["under"], action, at=watched["at"], diary=watched["diary"])
        {"saves": watch_saves, "everything": watch_everything}[watched["what"]](operations)
    main = importlib.import_module(request["module"]).main
    code = 0
    try:
        code = main(request["words"])
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001 - what a user would see: a traceback, and code 1
        traceback.print_exc()
        code = 1
    if watched and watched["what"] == "everything":
        operations.note(f"count {operations.count}")
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def raise_child(request: dict[str, Any]) -> None:
    """Fork twice: a waiter that writes down the process id and the code, and the command itself."""
    if os.fork():
        return  # the waiter is nobody's: the kernel reaps it
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os._exit(child(request))
    write_down(f"{request['said']}.pid", pid)
    _, status = os.waitpid(pid, 0)
    write_down(f"{request['said']}.code", os.waitstatus_to_exitcode(status))
    os._exit(0)


def write_down(path: str, number: int) -> None:
    """Whole or not there: somebody is waiting for it."""
    Path(f"{path}-").write_text(str(number))
    os.rename(f"{path}-", path)


def main() -> None:
    for name in PRELOADED:
        importlib.import_module(name)
    gc.freeze()  # or every fork walks and copies all of it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        raise_child(json.loads(line))


if __name__ == "__main__":
    main()
