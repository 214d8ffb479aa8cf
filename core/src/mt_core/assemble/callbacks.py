"""Calls the callbacks that a run named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from mt_core.errors import CallbackError, MtError
from mt_core.events import CallbackContext, Control
from mt_core.tracking.logs import is_first, notice

__all__ = ["CallbackContext", "Callbacks"]


class Callbacks:
    """The chosen callbacks, in the order of the config."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = dict(named)

    def listens(self, event: str) -> bool:
        """Whether any of them has this event."""
        return any(hasattr(item, event) for item in self._named.values())

    def call(self, event: str, context: CallbackContext) -> Control:
        """Call ``event`` on those that have it; what they ask for adds up.

        Raises ``CallbackError`` when one fails. After a failure of the run it only warns, so as not to hide that.
        """
        total = Control()
        for name in self._named:
            try:
                answer = self._ask(name, event, context)
            except CallbackError as error:
                if context.error is None:
                    raise
                notice(f"warning: {error}")
                continue
            if isinstance(answer, Control):
                total |= answer
                if answer.say and is_first():
                    notice(f"{name}: {answer.say}")
        return total

    @contextmanager
    def around_evaluation(self, context: CallbackContext) -> Iterator[None]:
        """What they put around an evaluation and its texts, such as other weights."""
        with ExitStack() as stack:
            for name, item in self._named.items():
                if hasattr(item, "around_evaluation"):
                    stack.enter_context(self._ask(name, "around_evaluation", context))
            yield

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

    def tensors(self) -> dict[str, Any]:
        """Whole tensors of those that keep some, by name: iterables of (name, tensor), which all ranks walk through."""
        return {_folder(name): item.tensors() for name, item in self._named.items() if hasattr(item, "tensors")}

    def load_tensors(self, read: Mapping[str, Mapping[str, Any]]) -> None:
        """Put these back: callback → name → a function that reads one."""
        for name, item in self._named.items():
            if _folder(name) in read and hasattr(item, "load_tensors"):
                item.load_tensors(read[_folder(name)])


def _folder(name: str) -> str:
    """One folder, also for ``DISTRIBUTION/NAME``."""
    return name.replace("/", "--")
