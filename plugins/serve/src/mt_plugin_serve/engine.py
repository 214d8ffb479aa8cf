"""The thread of the model, which runs torch. Jobs and cancels go in by a queue, tokens come out in the event loop.

One decoder for each adapter, since rows of one step have the same weights; they step in turn. Prompts whose own tokens are scored are
read piece by piece between the steps. Where a CPU has processors to spare, a second thread takes prompts in beside the steps.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue

from mt_core import MtError
from mt_train import LoadedModel
from mt_train.generation import Decoder, PromptScores, PromptThread, Request, TokenOutput, TokenScore

from .limits import Limits
from .metrics import Metrics
from .models import Models, ServedModel
from .pace import Pace

Event = TokenOutput | tuple[TokenScore, ...] | MtError
"""A result of a job: tokens one by one, the scores of a whole prompt, or the reason why there are none."""
Listen = Callable[[Event], None]
JobEvents = list[tuple["Job", Event]]


@dataclass(eq=False)
class Job:
    """A text that is wanted: its tokens, or the scores of a prompt with ``score_top`` likeliest tokens in each place.

    ``listen`` is called in the event loop.
    """

    model: ServedModel
    request: Request
    listen: Listen
    score_top: int | None = None
    asked_at: float = field(default_factory=time.monotonic)
    is_open: bool = True
    """Whether somebody still listens; the event loop alone writes it."""
    has_begun: bool = False
    """Whether its first token is there; the thread alone writes it."""


class Engine:
    """Runs jobs. ``start``, ``submit``, ``cancel`` and ``close`` belong to the event loop."""

    def __init__(self, models: Models, limits: Limits, metrics: Metrics) -> None:
        self._models, self._metrics = models, metrics
        self.capacity = limits.max_rows + limits.max_queue
        loaded_of = {model.adapter: model.loaded for model in models}
        limits = replace(limits, cache_tokens=limits.cache_share(len(loaded_of)))
        # Decoders of several adapters take turns with the weights.
        self._prompts = PromptThread.where_free(models.default.loaded.model) if models.several is None else None
        self._queues = [
            _AdapterQueue(adapter, loaded, limits, metrics, self._prompts) for adapter, loaded in loaded_of.items()
        ]
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        self._closing = False
        self._jobs: set[Job] = set()
        self.failure: BaseException | None = None

    def start(self, on_failure: Callable[[], None]) -> None:
        """Start the thread; ``on_failure`` is called in this event loop where it dies."""
        self._loop, self._on_failure = asyncio.get_running_loop(), on_failure
        self._thread.start()

    @property
    def free(self) -> int:
        """Texts that may be asked for now."""
        return self.capacity - len(self._jobs)

    def submit(self, job: Job) -> None:
        """Run a job."""
        self._jobs.add(job)
        queue = self._queue_of(job)
        self._inbox.put(lambda: queue.add(job))

    def cancel(self, job: Job) -> None:
        """Run a job no more, if it has not ended. Nobody listens from now on."""
        job.is_open = False
        if job in self._jobs:
            self._jobs.discard(job)
            queue = self._queue_of(job)
            self._inbox.put(lambda: queue.cancel(job))

    def close(self) -> None:
        """Drop what runs, and end the thread once the forward is through that it is in: Python's end would abort the process there."""
        for job in list(self._jobs):
            self.cancel(job)

        def end() -> None:
            self._closing = True

        self._inbox.put(end)
        if self._thread.is_alive():
            self._thread.join()
        if self._prompts is not None:
            self._prompts.close()

    def _queue_of(self, job: Job) -> _AdapterQueue:
        return next(queue for queue in self._queues if queue.adapter == job.model.adapter)

    def _run(self) -> None:
        try:
            while True:
                self._take_inbox()
                if self._closing:  # a cancelled prompt may be computed still, which a step would wait for
                    return
                events: JobEvents = []
                for queue in self._queues:
                    if queue.is_busy:
                        if self._models.several is not None:
                            self._models.several.use(queue.adapter)
                        events += queue.step()
                self._publish()
                if events:
                    self._loop.call_soon_threadsafe(self._deliver, events)
        except BaseException as error:  # noqa: BLE001 - whatever it was: everybody who waits is told, and the server ends
            self._loop.call_soon_threadsafe(self._fail, error)

    def _take_inbox(self) -> None:
        """Run what came in by the inbox; wait for it where no job runs."""
        if not any(queue.is_busy for queue in self._queues) and not self._closing:
            self._publish()
            self._inbox.get()()
        while True:
            try:
                self._inbox.get_nowait()()
            except Empty:
                return

    def _publish(self) -> None:
        figures = self._metrics
        figures.running = sum(queue.count_running for queue in self._queues)
        figures.waiting = sum(queue.count_waiting for queue in self._queues)
        figures.cache_places = sum(queue.decoder.held_tokens for queue in self._queues)

    def _deliver(self, events: Sequence[tuple[Job, Event]]) -> None:
        for job, event in events:
            if not job.is_open:
                continue
            if not isinstance(event, TokenOutput) or event.is_last:
                self._jobs.discard(job)
            job.listen(event)

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        stopped = MtError("the model has stopped")
        for job in list(self._jobs):
            self._jobs.discard(job)
            if job.is_open:
                job.listen(stopped)
        self._on_failure()


class _AdapterQueue:
    """The jobs of one adapter, with the decoder that runs them: rows of one step have the same weights."""

    def __init__(
        self,
        adapter: str | None,
        loaded: LoadedModel,
        limits: Limits,
        metrics: Metrics,
        prompts: PromptThread | None,
    ) -> None:
        self.adapter, self._loaded, self._metrics = adapter, loaded, metrics
        self._limits, self._prompts = limits, prompts
        self.decoder = Decoder(
            loaded,
            max_rows=limits.max_rows,
            max_tokens=limits.cache_tokens,
            prefill_tokens=limits.prefill_tokens,
            prompt_thread=prompts,
        )
        self._pace = Pace(limits.prefill_tokens)
        self._jobs: dict[int, Job] = {}
        self._scored: deque[tuple[Job, PromptScores]] = deque()
        self._refused: JobEvents = []
        self._kept: dict[int, list[TokenOutput]] = {}

    @property
    def is_busy(self) -> bool:
        return bool(self.decoder.busy or self._scored or self._refused)

    @property
    def count_running(self) -> int:
        return len(self.decoder.running_requests) + len(self._scored)

    @property
    def count_waiting(self) -> int:
        return len(self.decoder.waiting_requests)

    def add(self, job: Job) -> None:
        try:
            if job.score_top is None:
                self._jobs[self.decoder.add(job.request)] = job
            else:
                self._scored.append((job, PromptScores(self._loaded, job.request.ids, job.score_top)))
        except MtError as error:
            self._refused.append((job, error))

    def cancel(self, job: Job) -> None:
        for number in [number for number, each in self._jobs.items() if each is job]:
            self.decoder.cancel(number)
            self._forget(number)
        self._scored = deque(each for each in self._scored if each[0] is not job)

    def _forget(self, number: int) -> Job:
        self._kept.pop(number, None)
        return self._jobs.pop(number)

    def step(self) -> JobEvents:
        events, self._refused = self._refused, []
        if self.decoder.busy:
            events += self._decode()
        if self._scored:
            events += self._score()
        return events

    def _decode(self) -> JobEvents:
        if self._prompts is not None:  # a piece delays nobody
            return self._step(self._limits.prefill_tokens)
        running = sum(self._jobs[number].has_begun for number in self.decoder.running_requests)
        entering = len(self.decoder.entering_requests)
        before, began = self.decoder.prompt_tokens, time.perf_counter()
        produced = self._step(self._pace.piece(running=running, entering=entering))
        self._pace.learn(time.perf_counter() - began, self.decoder.prompt_tokens - before, running=running)
        return produced

    def _step(self, piece: int) -> JobEvents:
        produced = self.decoder.step(prefill_tokens=piece)
        self._metrics.steps += 1
        return [pair for output in produced for pair in self._pass_on(output)]

    def _pass_on(self, output: TokenOutput) -> JobEvents:
        """Return the events of one more token: tokens of a text that is not streamed go out together, in fewer calls of the event loop."""
        job = self._jobs[output.number]
        if not job.has_begun:
            job.has_begun = True
            self._metrics.first_token(time.monotonic() - job.asked_at)
        self._metrics.new_tokens += output.error is None
        kept = self._kept.setdefault(output.number, [])
        kept.append(output)
        if not output.is_last and not job.request.streams:
            return []
        events: JobEvents = [(job, each) for each in kept]
        kept.clear()
        if output.is_last:
            self._forget(output.number)
        return events

    def _score(self) -> JobEvents:
        job, scores = self._scored[0]
        if not scores.step(self._pace.piece(running=len(self.decoder.running_requests))):
            return []
        self._scored.popleft()
        return [(job, tuple(scores.scores))]
