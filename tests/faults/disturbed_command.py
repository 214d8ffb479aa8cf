"""Runs a command with files that fail, a process that dies at some operation, another clock or a limit of what a file may hold.

The first word is a JSON object: the module of the command, and what is done to it. That is done with what Python itself offers (audit
hooks, resource limits): nothing in the core knows of it.
"""

from __future__ import annotations

import builtins
import errno
import importlib
import io
import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

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


def main() -> int:
    """The command, as disturbed as it is asked for; its exit code."""
    request, words = json.loads(sys.argv[1]), sys.argv[2:]
    if clock := request.get("clock"):
        honest = time.time
        time.time = lambda: honest() + clock  # type: ignore[assignment]
    if limit := request.get("largest_file"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    operations = None
    if watched := request.get("watch"):
        action = {"die": die, "fail": fail}[watched["act"]]
        operations = Operations(watched["under"], action, at=watched["at"], diary=watched["diary"])
        {"saves": watch_saves, "everything": watch_everything}[watched["what"]](operations)
    try:
        return importlib.import_module(request["module"]).main(words)
    finally:
        if operations is not None and watched["what"] == "everything":
            operations.note(f"count {operations.count}")


if __name__ == "__main__":
    sys.exit(main())
