"""A plugin whose callback does something terrible on one rank, when the run reaches a certain moment."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from mt_core import Component, MtConfig, hookimpl


class FaultyCallbackConfig(MtConfig):
    """``RANK=what@event`` for each rank that misbehaves, such as ``1=raise@on_step_end``; from the second step on."""

    deeds: tuple[str, ...] = ()


class FaultyCallback:
    def __init__(self, deeds: tuple[str, ...]) -> None:
        by_rank = dict(deed.split("=") for deed in deeds)
        self._saves = 0
        self._what, _, self._event = by_rank.get(os.environ.get("RANK", "0"), "").partition("@")

    def on_step_start(self, context: Any) -> None:
        self._at("on_step_start", context.step)

    def on_evaluate_end(self, context: Any) -> None:
        self._at("on_evaluate_end", context.step)

    def state_dict(self) -> dict[str, Any]:
        """Asked for by a save, of which other ranks are in the midst when this one is gone."""
        self._saves += 1
        self._at("save", 2)
        if self._saves == 2:
            self._at("second-save", 2)
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """There is none."""

    def _at(self, event: str, step: int) -> None:
        if event == self._event and step >= 2:
            getattr(self, f"_{self._what}")()

    def _raise(self) -> None:
        raise ZeroDivisionError("no divisor on this rank")

    def _kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _stop(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def _orphan(self) -> None:
        os.kill(os.getppid(), signal.SIGKILL)

    def _leave(self) -> None:
        os._exit(0)

    def _collate(self) -> None:
        """The next row that this rank reads is bad."""
        from mt_core.errors import DataError
        from mt_core.nn import TokenObjective

        def collate(*arguments: Any, **named: Any) -> Any:
            raise DataError("row 7 cannot be used")

        TokenObjective.collate = collate

    def _evaluate(self) -> None:
        """The next evaluation fails."""
        from mt_train.engine.engine import Engine

        def evaluate(*arguments: Any) -> Any:
            raise IndexError("no such token")

        Engine.evaluate = evaluate

    def _hang(self) -> None:
        while True:
            time.sleep(0.1)


@hookimpl
def mt_callbacks() -> list[Component]:
    return [
        Component(
            name="faulty",
            config=FaultyCallbackConfig,
            build=lambda c: FaultyCallback(c.deeds),
            summary="a fault on demand",
        )
    ]
