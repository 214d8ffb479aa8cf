"""The callbacks that a run named, and the events that are sent to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from mt_core.errors import CallbackError, MtError, StopNow
from mt_core.events import CallbackContext, Control
from mt_core.protocols import StepRecord
from mt_core.tracking.logs import notice
from mt_train.config.ranks import ranks
from mt_train.data.loader import Position
from mt_train.tracking.failures import describe_failure

__all__ = ["CallbackContext", "Callbacks", "EpochEvents", "Events"]


class Callbacks:
    """The chosen callbacks, in the order of the config."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = dict(named)
        self._rates: dict[str, float] = {}

    def add(self, name: str, item: Any) -> None:
        """Add another one, behind those of the config."""
        self._named[name] = item

    def listens(self, event: str) -> bool:
        """Return whether any of them has this event."""
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
                self._refuse_odd(name, event, answer.metrics)
                self._take_rate(name, event, answer.rate)
                total |= answer
                if answer.say and ranks().rank == 0:
                    notice(f"{name}: {answer.say}")
        return total

    def scale(self, schedule: Callable[[int], float]) -> Callable[[int], float]:
        """Return the schedule times what callbacks have asked for by then (``Control.rate``)."""
        return lambda step: schedule(step) * math.prod(self._rates.values())

    def _take_rate(self, name: str, event: str, rate: float | None) -> None:
        if rate is None:
            return
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < math.inf:
            raise CallbackError(
                f"callback {name} asks for rate {rate!r} in {event}; it is a finite number, 0 or more, that multiplies the schedule's rates"
            )
        self._rates[name] = float(rate)

    @staticmethod
    def _refuse_odd(name: str, event: str, metrics: Mapping[str, Any]) -> None:
        for figure, value in metrics.items():
            if not isinstance(figure, str) or isinstance(value, bool) or not isinstance(value, int | float):
                raise CallbackError(
                    f"callback {name} gives {figure!r}: {value!r} in {event}; figures are numbers by name, such as {{'exact_match': 0.5}}"
                )

    @contextmanager
    def around_evaluation(self, context: CallbackContext) -> Iterator[None]:
        """Enter what they put around an evaluation and its texts, such as other weights."""
        with ExitStack() as stack:
            for name, item in self._named.items():
                if hasattr(item, "around_evaluation"):
                    stack.enter_context(self._around(name, context))
            yield

    @contextmanager
    def _around(self, name: str, context: CallbackContext) -> Iterator[None]:
        with self._blame(name, "around_evaluation", context.step):
            manager = self._named[name].around_evaluation(context)
            manager.__enter__()
        failure: BaseException | None = None
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is raised again once the callback has cleaned up
            failure = error
        with self._blame(name, "around_evaluation", context.step):
            manager.__exit__(*((type(failure), failure, failure.__traceback__) if failure else (None, None, None)))
        if failure is not None:
            raise failure

    def _ask(self, name: str, event: str, context: CallbackContext) -> Any:
        method = getattr(self._named[name], event, None)
        if method is None:
            return None
        with self._blame(name, event, context.step):
            return method(context)

    @contextmanager
    def _blame(self, name: str, where: str, step: int | None = None) -> Iterator[None]:
        """Raise what a callback raises, ``SystemExit`` included, as a ``CallbackError`` that names it."""
        try:
            yield
        except (MtError, StopNow, GeneratorExit):
            raise
        except BaseException as error:  # a plugin's code may raise anything; whose it is has to be said
            at = "" if step is None else f" at step {step}"
            raise CallbackError(
                f"callback {name} ({type(self._named[name]).__module__}) failed in {where}{at}:"
                f" {describe_failure(error, self._named[name])}; the run's logs/ have it too"
            ) from error

    def state_dict(self) -> dict[str, Any]:
        """State of those that have one, by name."""
        found = {}
        for name, item in self._named.items():
            if hasattr(item, "state_dict"):
                with self._blame(name, "state_dict"):
                    found[name] = item.state_dict()
        return found

    def load_state_dict(self, state: Mapping[str, Any], source: str = "a checkpoint") -> None:
        """Put state back; a callback that is new or gone is left alone. ``source`` is where it was read."""
        for name, content in state.items():
            if name in self._named and hasattr(self._named[name], "load_state_dict"):
                with self._blame(name, f"load_state_dict, of what {source} has under callbacks.{name}"):
                    self._named[name].load_state_dict(content)

    def tensors(self) -> dict[str, Any]:
        """Whole tensors of those that keep some, by name: iterables of (name, tensor), which all ranks walk through."""
        return {_folder(name): self._walk(name) for name, item in self._named.items() if hasattr(item, "tensors")}

    def _walk(self, name: str) -> Iterator[Any]:
        with self._blame(name, "tensors"):
            yield from self._named[name].tensors()

    def load_tensors(self, read: Mapping[str, Mapping[str, Any]]) -> None:
        """Put these back: callback → name → a function that reads one."""
        for name, item in self._named.items():
            if _folder(name) in read and hasattr(item, "load_tensors"):
                with self._blame(name, "load_tensors"):
                    item.load_tensors(read[_folder(name)])


def _folder(name: str) -> str:
    """One folder, also for ``DISTRIBUTION/NAME``."""
    return name.replace("/", "--")


class Events:
    """Sends a run's events to its callbacks. ``make_context`` gives the context of one, which is made only where somebody listens."""

    def __init__(self, callbacks: Callbacks, make_context: Callable[..., CallbackContext]) -> None:
        self.callbacks, self._make_context = callbacks, make_context
        self._requests = Control()

    def listens(self, event: str) -> bool:
        """Return whether any callback has this event."""
        return self.callbacks.listens(event)

    def send(self, event: str, step: int, **fields: Any) -> Control:
        """Call ``event`` on the callbacks that have it, with these fields of the context, and return what they ask for."""
        if not self.callbacks.listens(event):
            return Control()
        return self.callbacks.call(event, self._make_context(step, **fields))

    def send_ahead(self, event: str, step: int, **fields: Any) -> None:
        """Send an event up to ``on_after_optimizer_step``. What callbacks ask for in these holds after the step (``take_requests``)."""
        self._requests |= self.send(event, step, **fields)

    def take_requests(self) -> Control:
        """Return what was asked for since the step before."""
        requests, self._requests = self._requests, Control()
        return requests

    def around_evaluation(self, step: int) -> AbstractContextManager[None]:
        """Return what callbacks put around an evaluation."""
        return self.callbacks.around_evaluation(self._make_context(step))


class EpochEvents:
    """Sends the begin and the end of each epoch once, in a run that goes on too.

    Rows in files tell the end of an epoch with its last step. A stream does not: it has ended when the first rows of the next come.
    """

    def __init__(self, events: Events) -> None:
        self._events = events
        self._epoch: int | None = None
        """Epoch that has begun and not ended; ``None`` between two."""

    def begin(self, position: Position) -> None:
        """Begin where a run does, or goes on."""
        self._epoch = None if position == Position(position.epoch) else position.epoch

    def before_step(self, step: int, epoch: int) -> None:
        """Send that an epoch begins, where the next step is its first one."""
        if epoch == self._epoch:
            return
        if self._epoch is not None:
            self._events.send_ahead("on_epoch_end", step, epoch=self._epoch)
        self._epoch = epoch
        self._events.send_ahead("on_epoch_start", step, epoch=epoch)

    def after_step(self, position: Position, record: StepRecord) -> Control:
        """Send that an epoch ends, where the step that led to ``position`` was its last one."""
        if position != Position(position.epoch):
            return Control()
        self._epoch = None
        return self._events.send("on_epoch_end", record.step, epoch=position.epoch - 1, record=record)
