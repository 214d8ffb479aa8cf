"""Calls the callbacks that a run named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mt_core.errors import CallbackError, MtError
from mt_core.protocols import Control, StepRecord
from mt_core.tracking.logs import notice


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
        """Call ``event`` on those that have it; what they ask for adds up.

        Raises ``CallbackError`` when one fails. After a failure of the run it only warns, so as not to hide that.
        """
        stop = save = evaluate = False
        for name in self._named:
            try:
                answer = self._ask(name, event, context)
            except CallbackError as error:
                if context.error is None:
                    raise
                notice(f"warning: {error}")
                continue
            if isinstance(answer, Control):
                stop, save, evaluate = stop or answer.stop, save or answer.save, evaluate or answer.evaluate
        return Control(stop=stop, save=save, evaluate=evaluate)

    def _ask(self, name: str, event: str, context: CallbackContext) -> Any:
        callback = self._named[name]
        method = getattr(callback, event, None)
        try:
            return method(context) if method is not None else None
        except MtError:
            raise
        except Exception as error:  # a plugin's code may raise anything; whose it is has to be said
            raise CallbackError(
                f"callback {name} ({type(callback).__module__}) failed in {event} at step {context.step}:"
                f" {type(error).__name__}: {error} (--debug shows where; the run's logs/ have it too)"
            ) from error

    def state_dict(self) -> dict[str, Any]:
        """State of those that have one, by name."""
        return {name: item.state_dict() for name, item in self._named.items() if hasattr(item, "state_dict")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put state back; a callback that is new or gone is left alone."""
        for name, content in state.items():
            if name in self._named and hasattr(self._named[name], "load_state_dict"):
                self._named[name].load_state_dict(content)
