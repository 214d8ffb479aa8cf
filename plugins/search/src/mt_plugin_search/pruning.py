"""A trial that is worse than half of those before it ends early.

The rule is Optuna's ``MedianPruner``. A trial knows the others from a file that the search wrote before it began, so that
all processes of the run decide alike, and a resumed trial as one that was never stopped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from mt_core import CallbackContext, Control, MtConfig, MtError, did_you_mean
from mt_core.evaluation import figure_prefix

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.study import Study

METRIC = r"^[a-z][a-z0-9_]*$"
HISTORY = "history.json"
OWN = frozenset({"step", "lr", "tokens", "tokens_per_second", "memory_gib", "data_wait_seconds", "epoch", "seconds"})
"""Figures that tell nothing of the model."""

Figures = dict[int, float]
"""Optimizer step → the figure at the evaluation there."""


class MedianPruningConfig(MtConfig):
    """Condition under which a trial is given up."""

    history: str = Field(min_length=1, description="file with the figures of earlier trials, which mt-search writes")
    metric: str = Field("eval_loss", pattern=METRIC, description="a figure of the evaluations")
    mode: Literal["min", "max"] = Field("min", description="whether less or more of it is better")
    after: int = Field(5, gt=0, description="complete trials before any is given up")
    first_step: int = Field(0, ge=0, description="optimizer steps before a trial may be given up")


class MedianPruning:
    """Ends a run whose best figure so far is worse than the median of the earlier ones at this step."""

    def __init__(self, config: MedianPruningConfig) -> None:
        self._config = config
        self._figures: Figures = {}
        self._study: Study | None = None
        self._named = ""

    def on_run_start(self, context: CallbackContext) -> None:
        """Read what the others had."""
        if self._config.metric.startswith("eval_") and not context.evaluates:
            raise MtError(
                f"callback median-pruning waits for {self._config.metric}, and this run holds no rows out: set data.eval"
            )
        self._study = _study_of(read_history(Path(self._config.history)), self._config)
        begins = (figure_prefix(str(each["name"])) for each in context.config.get("evaluations", ()))
        self._named = max(filter(self._config.metric.startswith, begins), key=len, default="")

    def on_evaluate_end(self, context: CallbackContext) -> Control | None:
        """Compare; where it is worse, the run ends."""
        assert self._study is not None, "on_run_start comes first"
        assert context.record is not None, "an evaluation has a record"
        values = context.record.as_dict()
        if not self._is_due(values):
            return None
        value = self._figures[context.step] = figure(values, self._config.metric)
        if not isfinite(value):
            return Control(stop=True, say=f"{self._config.metric} is {value}; the run ends")
        if not _is_worse(self._study, self._figures):
            return None
        best = (min if self._config.mode == "min" else max)(self._figures.values())
        return Control(
            stop=True, say=f"{self._config.metric} of {best:.4f} is worse than half of the earlier trials; the run ends"
        )

    def _is_due(self, values: Mapping[str, Any]) -> bool:
        """Return whether the run's evaluation that gives the figure has run: some do at every n-th alone."""
        return not self._named or any(name.startswith(self._named) for name in values)

    def state_dict(self) -> dict[str, Any]:
        """The figures so far."""
        return {"figures": [[step, value if isfinite(value) else None] for step, value in self._figures.items()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on comparing."""
        self._figures = {int(step): nan if value is None else float(value) for step, value in state["figures"]}


def figure(values: dict[str, Any], metric: str) -> float:
    """The figure in a record; NaN where it is no number. Raises ``MtError`` with those that there are."""
    if metric not in values:
        known = sorted(values.keys() - OWN)
        hint = did_you_mean(metric, known)
        raise MtError(f"the search waits for {metric}, which never comes. {hint}There are: {', '.join(known)}.")
    return nan if values[metric] is None else float(values[metric])


def median_pruner(*, after: int, first_step: int) -> BasePruner:
    """Optuna's rule; https://optuna.readthedocs.io/en/stable/reference/generated/optuna.pruners.MedianPruner.html."""
    from optuna.pruners import MedianPruner

    return MedianPruner(n_startup_trials=after, n_warmup_steps=first_step)


def read_history(path: Path) -> list[Figures]:
    """Figures of the earlier trials. Raises ``MtError`` for a file that mt-search has not written."""
    try:
        return [
            {int(step): float(value) for step, value in each.items()} for each in json.loads(path.read_text("utf-8"))
        ]
    except OSError as error:
        raise MtError(
            f"cannot read {path}, the figures of earlier trials: {error.strerror}; mt-search writes it"
        ) from error
    except (ValueError, TypeError, AttributeError) as error:
        raise MtError(
            f"{path} does not hold the figures of earlier trials ({error}); start the trial with mt-search"
        ) from error


def _study_of(history: list[Figures], config: MedianPruningConfig) -> Study:
    """A study in memory with these trials, all complete."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        direction="minimize" if config.mode == "min" else "maximize",
        pruner=median_pruner(after=config.after, first_step=config.first_step),
    )
    study.add_trials(
        [optuna.trial.create_trial(value=figures[max(figures)], intermediate_values=figures) for figures in history]
    )
    return study


def _is_worse(study: Study, figures: Figures) -> bool:
    from optuna.trial import FrozenTrial, TrialState

    trial = FrozenTrial(
        number=len(study.trials),
        trial_id=len(study.trials),
        state=TrialState.RUNNING,
        value=None,
        datetime_start=None,
        datetime_complete=None,
        params={},
        distributions={},
        user_attrs={},
        system_attrs={},
        intermediate_values=figures,
    )
    return study.pruner.prune(study, trial)
