"""The evaluation of a run: its held-out rows, texts, the evaluations that it names, and what callbacks add."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mt_core.errors import CallbackError
from mt_train.assemble.callbacks import Events
from mt_train.assemble.evaluations import Evaluations, refuse_twice, share_figures
from mt_train.assemble.samples import Samples
from mt_train.engine.compilation import run_uncompiled
from mt_train.engine.engine import Engine
from mt_train.engine.random_state import preserve_random_state
from mt_train.evaluate.subject import EvaluationStopped


class Evaluation:
    """Evaluates a model on held-out rows, where there are any, and by evaluations.

    ``measure_held_out`` gives figures of these rows, ``None`` where a wish to stop came first.
    ``samples`` writes texts, prompt and new tokens up to ``longest`` tokens. Training goes on as if nothing had been: random
    generators are as they were, whatever an evaluation did.
    """

    def __init__(
        self,
        engine: Engine,
        measure_held_out: Callable[[], dict[str, float] | None] | None,
        samples: Samples | None,
        evaluations: Evaluations,
        events: Events,
        *,
        longest: int,
    ) -> None:
        self._engine, self._measure_held_out, self._samples, self._events = engine, measure_held_out, samples, events
        self._longest, self._evaluations = longest, evaluations

    def figures(self, step: int, number: int) -> dict[str, float] | None:
        """Return the figures after this step; ``None`` when a wish to stop came first. Collective.

        ``number`` counts the evaluations of the run, from 1.

        Raises ``CallbackError`` for a callback's figure that the evaluation has already, ``ComponentError`` for an evaluation's.
        """
        with preserve_random_state():
            try:
                return self._figures(step, number)
            except EvaluationStopped:
                return None

    def _figures(self, step: int, number: int) -> dict[str, float] | None:
        figures: dict[str, float] | None = {}
        with self._events.around_evaluation(step):
            if self._measure_held_out is not None:
                figures = self._measure_held_out()
            if figures is None:
                return None
            texts: Sequence[Mapping[str, Any]] = ()
            with self._engine.use_averaged_weights(), run_uncompiled():
                asked = self._evaluations.figures(step, number)
                refuse_twice("an evaluation of the run", asked, figures)
                if self._samples is not None:
                    texts = self._samples.write(step, longest=self._longest)
                figures |= self._added_figures(figures | asked, step, texts)
        return figures | asked

    def _added_figures(
        self, figures: Mapping[str, float], step: int, texts: Sequence[Mapping[str, Any]]
    ) -> dict[str, float]:
        """Return what callbacks add: rank 0 has the texts, and all ranks decide by its figures."""
        if not self._events.listens("on_predict_end"):
            return {}
        sent = self._events.send("on_predict_end", step, predictions=texts, subject=self._evaluations.subject).metrics
        added = share_figures({f"eval_{name.removeprefix('eval_')}": value for name, value in sent.items()})
        if twice := sorted(added.keys() & figures.keys()):
            raise CallbackError(
                f"a callback gives {', '.join(twice)} in on_predict_end, which the evaluation has; choose another name"
            )
        return added
