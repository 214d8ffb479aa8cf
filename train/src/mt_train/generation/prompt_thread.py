"""Prompts that a thread of their own computes, while rows run in another.

A step of few rows waits for weights, a piece of a prompt is bound by its operations: on a processor that is free the piece costs the rows
nothing. Both only read the weights, and each has a cache of its own.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from mt_core.nn import DecoderModel, TrainModel
from mt_train.data.processors import count_processors
from mt_train.generation.intake import Intake


class PromptThread:
    """Computes one piece of a prompt at a time. ``close`` it."""

    @classmethod
    def where_free(cls, model: TrainModel) -> PromptThread | None:
        """Return a thread where prompts of the model may be computed beside its rows: on a CPU with processors for the threads of both.

        Blocks of ``mt_core`` keep nothing of a forward in themselves, so that two may run at once; code of others may.
        """
        on_cpu = all(each.device.type == "cpu" for each in model.parameters())
        stateless = isinstance(model, DecoderModel) and model.ragged_batches
        return cls() if on_cpu and stateless and 2 * torch.get_num_threads() <= count_processors() else None

    def __init__(self) -> None:
        # whose thread is no daemon: one that is inside torch when Python ends would abort the process
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="prompts")
        self._result: Future[Tensor | None] | None = None
        self.intake: Intake | None = None
        """The prompts of which a piece is being computed, or waits to be taken."""

    @property
    def is_done(self) -> bool:
        """Return whether ``take`` need not wait."""
        return self._result is None or self._result.done()

    def begin(self, intake: Intake, compute: Callable[[], Tensor | None]) -> None:
        """Compute a piece, with the thread's own ``inference_mode``."""
        context = contextvars.copy_context()

        def run() -> Tensor | None:
            with torch.inference_mode():
                return context.run(compute)

        self.intake, self._result = intake, self._pool.submit(run)

    def take(self) -> Tensor | None:
        """Wait for the piece, and return or raise what it gave."""
        assert self._result is not None
        result, self._result, self.intake = self._result, None, None
        return result.result()

    def close(self) -> None:
        """End the thread once its piece is computed."""
        self._pool.shutdown(wait=False, cancel_futures=True)
