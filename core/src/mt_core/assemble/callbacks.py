"""Calls the callbacks that a run named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mt_core.protocols import Control, StepRecord


@dataclass(frozen=True, kw_only=True)
class CallbackContext:
    """What a callback sees. Fields may be added; they are never removed without a deprecation."""

    step: int
    total_steps: int
    output: Path | None
    model: Any = None
    record: StepRecord | None = None
    checkpoint: Path | None = None
    error: BaseException | None = None


class Callbacks:
    """The chosen callbacks, in the order of the config."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = dict(named)

    def call(self, event: str, context: CallbackContext) -> Control:
        """Call ``event`` on those that have it; what they ask for adds up."""
        stop = save = evaluate = False
        for callback in self._named.values():
            method = getattr(callback, event, None)
            answer = method(context) if method is not None else None
            if isinstance(answer, Control):
                stop, save, evaluate = stop or answer.stop, save or answer.save, evaluate or answer.evaluate
        return Control(stop=stop, save=save, evaluate=evaluate)

    def state_dict(self) -> dict[str, Any]:
        """State of those that have one, by name."""
        return {name: item.state_dict() for name, item in self._named.items() if hasattr(item, "state_dict")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put state back; a callback that is new or gone is left alone."""
        for name, content in state.items():
            if name in self._named and hasattr(self._named[name], "load_state_dict"):
                self._named[name].load_state_dict(content)
