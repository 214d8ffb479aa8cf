"""Commits a run's checkpoints: before training goes on, or in a thread beside it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from mt_core.errors import CheckpointError, UsageError
from mt_core.groups import whole_shape
from mt_core.tracking.logs import for_the_file, notice
from mt_train.checkpoint.files import sizes
from mt_train.checkpoint.store import CheckpointStore, Retention
from mt_train.config.sections import CheckpointConfig
from mt_train.engine.build import stored_layers
from mt_train.engine.engine import Engine
from mt_train.engine.processes import agree, agree_beside
from mt_train.engine.snapshot import take_snapshot


class Saver:
    """The checkpoints of a run. Every rank calls every method, in the same order.

    In the background the same store does the same work, on a copy in host memory; ``on_saved`` is called with step, folder and the
    seconds that the commit took, when a checkpoint is committed and this rank's training asks (at the next save, or at the end).
    """

    def __init__(
        self,
        folder: Path,
        engine: Engine,
        settings: CheckpointConfig,
        on_saved: Callable[[int, Path, float], object],
        *,
        timeout_seconds: int,
        has_base: bool = False,
    ) -> None:
        self.folder = folder
        self._engine, self._settings, self._on_saved = engine, settings, on_saved
        wanted = settings.trainable_only
        self.trained_only = _trained_only(engine, has_base) if wanted is None else wanted
        if not self.trained_only and any(stored_layers(engine.module.model)):
            raise UsageError(
                "checkpoint.trainable_only=false: weights that are quantised are in no checkpoint, they are read and quantised again;"
                " leave it out"
            )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint") if settings.background else None
        self._running: tuple[int, Future[tuple[Path, float]]] | None = None
        together = agree_beside(engine.process, timeout_seconds) if settings.background else agree
        self._store = CheckpointStore(folder, rank=engine.process.rank, agree=together, say=notice)

    @property
    def failed(self) -> bool:
        """Return whether the save in the background could not be finished; ``finish`` raises why."""
        return self._running is not None and self._running[1].done() and self._running[1].exception() is not None

    def save(self, step: int, manifest: Mapping[str, Any], others: Mapping[str, Any] | None = None) -> None:
        """Commit the present state, and ``others``: whole tensors beside the model's.

        Raises ``CheckpointError`` when this save fails, or the one before it did."""
        self.finish()
        settings = self._settings
        only = self._engine.names_to_save() if self.trained_only else None
        snapshot = take_snapshot(self._engine, copied=self._thread is not None, only=only, others=others)
        keep = Retention(last=settings.keep_last, best=settings.keep_best, by=settings.best)
        commit = partial(_time, partial(self._store.save, step, write=snapshot.write, manifest=manifest, keep=keep))
        if self._thread is None:
            self._on_saved(step, *commit())
        else:
            self._running = (step, self._thread.submit(commit))

    def finish(self) -> None:
        """Wait for the save in the background. Raises ``CheckpointError`` when it failed."""
        if self._running is not None:
            (step, future), self._running = self._running, None
            self._on_saved(step, *future.result())

    def point(self, checkpoint: Path) -> None:
        """Let ``latest`` name this checkpoint, whichever was saved last."""
        self._store.point(checkpoint)

    def abandon(self) -> None:
        """A run has failed: what is under way is committed if it can be, and never hides what went wrong."""
        try:
            self.finish()
        except BaseException as error:  # noqa: BLE001 - gloo's own too, where another rank has gone; the run ends with another
            notice(f"warning: {error}")


def _time(commit: Callable[[], Path]) -> tuple[Path, float]:
    """Return the folder that was committed, and how long that took in seconds."""
    began = time.perf_counter()
    return commit(), time.perf_counter() - began


def tell_saved(step: int, checkpoint: Path, seconds: float) -> None:
    """Make a complete checkpoint an event of the run; one that somebody has removed meanwhile is none."""
    try:
        size = sum(sizes(checkpoint).values())
    except (OSError, CheckpointError):
        return
    event = {"kind": "checkpoint", "step": step, "seconds": round(seconds, 3), "bytes": size}
    for_the_file(f"{checkpoint.name}: {size / 1e6:,.1f} MB in {seconds:.1f} s", event=event)


def _trained_only(engine: Engine, has_base: bool) -> bool:
    """Return whether most of the weights are still those of ``model.weights``, and can be read from there again; quantised ones must be."""
    if any(stored_layers(engine.module.model)):
        return True
    saved = engine.names_to_save()
    sizes = {name: math.prod(whole_shape(each)) for name, each in engine.module.model.named_parameters()}
    return has_base and 2 * sum(size for name, size in sizes.items() if name in saved) < sum(sizes.values())
