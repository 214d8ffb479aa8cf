"""Events of a run: what callbacks and trackers see, and what callbacks may ask for. Torch is imported for type checkers only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from mt_core.protocols import StepRecord, Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from mt_core.evaluation import Subject
    from mt_core.nn import Batch


EVENTS: Mapping[str, str] = {
    "on_model_built": "before a checkpoint's values are put in: the model and its engine are there",
    "on_run_start": "before the first step of this process, a resumed run included",
    "on_epoch_start": "before the first step of a pass over the rows",
    "on_step_start": "the rows of a step are read, and nothing is computed",
    "on_before_optimizer_step": "between the last backward of a step and the update",
    "on_after_optimizer_step": "after the update, or after a step that was passed over",
    "on_predict_end": "the texts of an evaluation are written, and its figures may be added to",
    "on_evaluate_end": "the record of a step with an evaluation is complete",
    "on_log": "every ``log.every_steps`` steps, and at each evaluation",
    "on_step_end": "the record of the step is written; only the end of an epoch and a save come after it",
    "on_epoch_end": "after the last step of a pass over the rows; of a stream when the next begins, since its end is known only then",
    "on_checkpoint_saved": "a checkpoint is complete; of one that is written in the background, when the next is saved or the run ends",
    "on_exception": "the run fails; what is raised here is a warning, so as not to hide why",
    "on_run_end": "after the last step, or after a signal",
}
"""Method that a callback may have → when it is called, on every rank, with one ``CallbackContext``. Beside them stands
``around_evaluation``, which returns a context manager around an evaluation and its texts."""


@dataclass(frozen=True, kw_only=True)
class Control:
    """Requests of a callback to the loop; every rank must ask for the same.

    ``say`` is printed once. Up to ``on_after_optimizer_step`` count ``evaluate`` (after this step) and ``metrics`` for the record of the
    step; in ``on_predict_end`` ``metrics`` for the evaluation, those of rank 0, as ``eval_NAME``, which the best checkpoint and early
    stopping may go by; in ``on_run_end`` ``latest``, the checkpoint that the run ends with, and goes on from. ``rate`` multiplies the
    schedule's rates from the next step on, until the callback asks for another; one of a resumed run asks again in ``on_run_start``.
    """

    stop: bool = False
    save: bool = False
    evaluate: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)
    latest: Path | None = None
    rate: float | None = None
    say: str = ""

    def __or__(self, other: Control) -> Control:
        """Return the requests of both."""
        return Control(
            stop=self.stop or other.stop,
            save=self.save or other.save,
            evaluate=self.evaluate or other.evaluate,
            metrics={**self.metrics, **other.metrics},
            latest=other.latest or self.latest,
        )


class TrainedWeights(Protocol):
    """The trained weights of a run, on any layout. Every rank must make the same calls; values are fp32.

    A slice is (name, start, flat values): what this rank holds of one parameter, counted in elements.
    """

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    @property
    def optimizer(self) -> Any:
        """The ``torch.optim.Optimizer`` that steps; under ZeRO its parameters are flat pieces."""
        ...

    def states(self) -> list[dict[str, Any]]:
        """Return the state of the optimizer for each of its parameters on this rank, then of a gradient transform; in a fixed order."""
        ...

    @property
    def sliced(self) -> bool:
        """Return whether each rank's slices are its own, rather than the same on all."""
        ...

    def slices(self) -> Iterator[tuple[str, int, Tensor]]:
        """Yield this rank's slices as live views, in a fixed order. Use ``put`` to write: writing to a view has no defined effect."""
        ...

    def gather(self, slices: Sequence[tuple[str, int, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yield whole parameters from the slices of all ranks, one at a time, in their shapes."""
        ...

    def put(self, slices: Sequence[tuple[str, int, Tensor]]) -> None:
        """Write these values into the model, for good."""
        ...

    def substitute(self, slices: Sequence[tuple[str, int, Tensor]]) -> AbstractContextManager[None]:
        """Write these values into the model inside the block, and restore its own afterwards, bit for bit."""
        ...


@dataclass(frozen=True, kw_only=True)
class CallbackContext:
    """View of the run that a callback gets. Fields may be added; they are never removed without a deprecation.

    ``step`` counts finished optimizer steps. ``model`` is the ``mt_core.nn.TrainModel`` that is trained, with its adapter in it: in a
    pipeline the layers of this rank's stage, at ZeRO 3 with weights that are whole only inside a forward (``weights`` has them). ``config``
    is the content of ``run.yaml``; ``evaluates`` tells whether rows are held out, or evaluations named; ``finished`` (in ``on_run_end``)
    whether it is complete, not stopped. ``batches`` are this rank's micro-batches, from ``on_step_start`` to ``on_after_optimizer_step``;
    ``repeat`` (in ``on_before_optimizer_step``, called by all ranks or none) computes them again, for hooks of gradients alone.
    ``predictions`` are rank 0's texts (``samples.jsonl``), ``subject`` the model as an evaluation sees it: both in ``on_predict_end``.
    """

    step: int
    total_steps: int
    output: Path | None
    model: Any = None
    weights: TrainedWeights | None = None
    tokenizer: Tokenizer | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    evaluates: bool = False
    finished: bool = False
    epoch: int = 0
    batches: Sequence[Batch] = ()
    repeat: Callable[[], None] | None = None
    record: StepRecord | None = None
    predictions: Sequence[Mapping[str, Any]] = ()
    subject: Subject | None = None
    checkpoint: Path | None = None
    error: BaseException | None = None


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """View of a run that a tracker gets. ``config`` is the content of ``run.yaml``, which never holds a secret.

    ``first_step`` is 0, or the step that a resumed run continues from: later steps are logged again.
    """

    name: str
    output: Path | None
    config: Mapping[str, Any]
    first_step: int


class Tracker(Protocol):
    """Sends the figures of a run elsewhere, on rank 0. An exception becomes one warning, and the run goes on without the tracker."""

    def log(self, record: StepRecord) -> None:
        """Log the figures of one step: every ``log.every_steps`` steps, and at each evaluation."""
        ...

    def close(self, *, failed: bool) -> None:
        """Close the tracker; the run has ended, or ``failed``."""
        ...
