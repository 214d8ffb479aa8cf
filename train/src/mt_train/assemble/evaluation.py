"""The evaluation of a run on its held-out rows: figures, texts, and what callbacks add to them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mt_core.errors import CallbackError
from mt_train.assemble.callbacks import Events
from mt_train.assemble.samples import SampleWriter
from mt_train.data.loader import HeldOut
from mt_train.engine.engine import Engine
from mt_train.engine.processes import share_text


class Evaluation:
    """Evaluates a model on held-out rows. ``samples`` writes texts on rank 0, prompt and new tokens up to ``longest`` tokens."""

    def __init__(
        self,
        engine: Engine,
        held_out: HeldOut,
        samples: SampleWriter | None,
        events: Events,
        *,
        longest: int,
        stop: Callable[[], bool],
    ) -> None:
        self._engine, self._held_out, self._samples, self._events = engine, held_out, samples, events
        self._longest, self._stop = longest, stop

    def figures(self, step: int) -> dict[str, float] | None:
        """Return the figures after this step; ``None`` when a wish to stop came first. Collective.

        Raises ``CallbackError`` for a callback's figure that the evaluation has already.
        """
        with self._events.around_evaluation(step):
            figures = self._engine.evaluate(self._held_out.batches(), self._stop)
            if figures is None:
                return None
            texts: Sequence[Mapping[str, Any]] = ()
            with self._engine.use_averaged_weights():  # on every rank, even if only the first one writes
                if self._samples is not None:
                    texts = self._samples.write(self._engine.module.model, step, longest=self._longest)
        return figures | self._added_figures(figures, step, texts)

    def _added_figures(
        self, figures: Mapping[str, float], step: int, texts: Sequence[Mapping[str, Any]]
    ) -> dict[str, float]:
        """Return what callbacks add: rank 0 has the texts, and all ranks decide by its figures."""
        if not self._events.listens("on_predict_end"):
            return {}
        asked = self._events.send("on_predict_end", step, predictions=texts).metrics
        here = {f"eval_{name.removeprefix('eval_')}": float(value) for name, value in asked.items()}
        added: dict[str, float] = json.loads(share_text(json.dumps(here)))
        if twice := sorted(added.keys() & figures.keys()):
            raise CallbackError(
                f"a callback gives {', '.join(twice)} in on_predict_end, which the evaluation has; choose another name"
            )
        return added
