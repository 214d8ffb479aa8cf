"""A plugin whose stream does something terrible on one rank, when a certain row is read: in the thread that reads a block ahead."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mt_core import Component, DataError, MtConfig, hookimpl


class FaultyStream:
    """``FAULTY_DEED`` is ``RANK=what@row``, such as ``1=kill@20``; no option, since a resumed run keeps its options."""

    def __init__(self) -> None:
        rank, _, what = os.environ.get("FAULTY_DEED", "").partition("=")
        self._what, _, row = what.partition("@")
        self._row = int(row or -1) if os.environ.get("RANK", "0") == rank else -1
        self._start = self._given = 0

    def rows(self, epoch: int, seed: int) -> Iterator[Any]:
        for number in range(self._start, 400):
            if number >= self._row >= 0:
                getattr(self, f"_{self._what}")(number)
            self._given = number + 1
            yield {"id": f"row-{number}", "text": f"row {number} is read"}

    def state_dict(self) -> dict[str, Any]:
        return {"given": self._given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._start = state["given"]

    def _raise(self, number: int) -> None:
        raise DataError(f"row-{number} is out of reach")

    def _encode(self, number: int) -> None:
        """Let encoding the rows of this block fail."""
        from mt_train.data.stream import shares

        def encode(*arguments: Any) -> Any:
            raise KeyError("no such token")

        shares.encode = encode

    def _kill(self, number: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _hang(self, number: int) -> None:
        while True:
            time.sleep(0.1)

    def _wait(self, number: int) -> None:
        Path("waiting").touch()
        self._hang(number)

    def _slow(self, number: int) -> None:
        time.sleep(0.2)


@hookimpl
def mt_datasets() -> list[Component]:
    def build(config: MtConfig, *, split: str) -> FaultyStream | None:
        return FaultyStream() if split == "train" else None

    return [Component(name="faulty-stream", config=MtConfig, build=build, summary="a fault on demand")]
