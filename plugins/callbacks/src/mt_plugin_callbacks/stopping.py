"""Early stopping, and the best checkpoint at the end."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from mt_core import CallbackContext, Control, MtConfig, MtError, StepRecord, did_you_mean
from mt_core.evaluation import figure_prefix

OWN = frozenset({"tokens_per_second", "memory_gib", "data_wait_seconds", "step", "lr", "tokens", "epoch", "seconds"})
"""Figures that tell nothing of the model, or differ between processes: no decision of all ranks can rest on them."""


class FigureConfig(MtConfig):
    """The figure that a callback looks at."""

    metric: str | None = Field(
        None, pattern=r"^[a-z][a-z0-9_]*$", description="a figure of metrics.jsonl; default is that of checkpoint.best"
    )
    mode: Literal["min", "max"] | None = Field(
        None,
        description="whether less or more of it is better; default is that of checkpoint.best, min for another metric",
    )


class EarlyStoppingConfig(FigureConfig):
    """Condition under which a run stops early."""

    patience: int = Field(3, gt=0, description="times in a row that the figure may come without a new best")
    min_delta: float = Field(0.0, ge=0, description="least change that counts as better (in units of the figure)")


class BestConfig(MtConfig):
    """The best checkpoint has no options: ``checkpoint.best`` says what best means."""


@dataclass(frozen=True)
class Goal:
    """A figure, and whether less or more of it is better.

    ``named`` is how the figures of the run's evaluation begin that gives it, if one does; that runs at each ``every``-th alone.
    """

    metric: str
    sign: int
    named: str = ""
    every: int = 1

    def __str__(self) -> str:
        return f"{self.metric}:{'min' if self.sign > 0 else 'max'}"

    @classmethod
    def of(cls, config: Mapping[str, Any], metric: str | None = None, mode: str | None = None) -> Goal:
        """Return the goal asked for, else what ``checkpoint.best`` of the run says. Raises ``MtError`` for one that cannot decide."""
        best, _, direction = str(config["checkpoint"]["best"]).partition(":")
        name = metric or best
        if name in OWN:
            raise MtError(
                f"{name} cannot say whether a model is good: it is the same for all, or differs between processes; choose"
                " another figure, such as eval_loss"
            )
        chosen = mode or (direction if name == best else "min")
        every = {figure_prefix(each["name"]): each.get("every", 1) for each in config.get("evaluations", ())}
        named = max(filter(name.startswith, every), key=len, default="")
        return cls(name, -1 if chosen == "max" else 1, named, every.get(named, 1))

    def check(self, context: CallbackContext, who: str) -> None:
        """Raises ``MtError`` before the first step where the figure can never come."""
        if self.metric.startswith("eval_") and not context.evaluates:
            raise MtError(
                f"callback {who} waits for {self.metric}, and this run holds no rows out: set data.eval, or take a figure of"
                " the training, such as loss"
            )

    def value(self, record: StepRecord, who: str) -> float | None:
        """The figure, smaller being better; ``None`` on steps that are not evaluated, or where the evaluation with it was not due.

        Raises ``MtError`` where an evaluation lacks it, with those that there are.
        """
        values = record.as_dict()
        found = values.get(self.metric)
        if found is not None:
            return self.sign * float(found)
        if self.named and not any(name.startswith(self.named) for name in values):
            return None
        if record.evaluation or not self.metric.startswith("eval_"):
            known = sorted(values.keys() - OWN)
            hint = did_you_mean(self.metric, known)
            raise MtError(
                f"callback {who} waits for {self.metric}, which never comes. {hint}There are: {', '.join(known)}."
            )
        return None


class EarlyStopping:
    """Ends the run when the figure has not become better for ``patience`` times."""

    def __init__(self, config: EarlyStoppingConfig) -> None:
        self._config = config
        self._goal: Goal | None = None
        self._before = ""
        self._best, self._waited = math.inf, 0

    def on_run_start(self, context: CallbackContext) -> Control | None:
        """Find out what to look at, and say where that cannot end the run."""
        self._goal = Goal.of(context.config, self._config.metric, self._config.mode)
        self._goal.check(context, "early-stopping")
        if self._before not in ("", str(self._goal)):
            self._best, self._waited = math.inf, 0
        if self._waited >= self._config.patience:  # it has ended the run, and somebody wants it to go on
            self._waited = 0
        return self._too_late(context) if self._goal.metric.startswith("eval_") else None

    def _too_late(self, context: CallbackContext) -> Control | None:
        """Evaluations that are needed: a first one to compare with, and those in a row without a new best."""
        assert self._goal is not None, "on_run_start has found it"
        coming = _evaluations_to_come(context, self._goal.every)
        needed = self._config.patience - self._waited + (self._best == math.inf)
        if coming is None or coming >= needed:
            return None
        pace = context.config["eval"]
        unit = "every_epochs" if pace.get("every_epochs") else "every_steps"
        told = f"eval.{unit} {pace[unit] or 'none'}"
        if self._goal.every > 1:
            told += f", the evaluation's every: {self._goal.every}"
        return Control(
            say=f"{coming} evaluation{'s'[: coming != 1]} before the last step ({told}) cannot end the run, which takes {needed}:"
            f" evaluate more often, or lower patience={self._config.patience}"
        )

    def on_step_end(self, context: CallbackContext) -> Control | None:
        """Look at the figure, where the step has it; one that is no number counts as worse."""
        assert self._goal is not None, "on_run_start comes first"
        assert context.record is not None, "a step that has ended has a record"
        value = self._goal.value(context.record, "early-stopping")
        if value is None:
            return None
        if value < self._best - self._config.min_delta:
            self._best, self._waited = value, 0
        else:
            self._waited += 1
        if self._waited < self._config.patience:
            return None
        best, times = self._goal.sign * self._best, f"{self._waited} time{'s'[: self._waited != 1]}"
        return Control(stop=True, say=f"{self._goal.metric} was not better than {best:.4f} for {times}; the run ends")

    def state_dict(self) -> dict[str, Any]:
        """The best so far, and how long ago it was."""
        best = self._best if math.isfinite(self._best) else None
        return {"best": best, "waited": self._waited, "goal": str(self._goal)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on waiting, unless it is for another figure by then."""
        self._best, self._waited = math.inf if state["best"] is None else state["best"], state["waited"]
        self._before = state.get("goal", "")


def _evaluations_to_come(context: CallbackContext, nth: int) -> int | None:
    """Return how many evaluations come before the last step, each ``nth`` alone; ``None`` where the number of passes over the rows is
    not known. In a resumed run that of the passes so far follows from the share of its steps."""
    pace = context.config["eval"]
    if not (epochs := pace.get("every_epochs")):
        between = (pace["every_steps"] or 0) * nth
        return (context.total_steps - 1) // between - context.step // between if between else 0
    length = context.config["train"]
    if length["steps"] is not None:
        return None
    passes = length["epochs"] or 1
    done = math.floor(passes * context.step / context.total_steps)
    return int((math.ceil(passes) - 1) // (epochs * nth) - done // (epochs * nth))


class Best:
    """Saves at each evaluation that is the best so far, and ends the run with that checkpoint as its ``latest``."""

    def __init__(self, config: BestConfig) -> None:
        self._goal: Goal | None = None
        self._before = ""
        self._best: float = math.inf
        self._name, self._step = "", -1

    def on_run_start(self, context: CallbackContext) -> None:
        """Find out what to look at. Raises ``MtError`` where no checkpoint would have the figure, or stay for it."""
        self._goal = Goal.of(context.config)
        self._goal.check(context, "best")
        if not self._goal.metric.startswith("eval_"):
            raise MtError(
                f"callback best needs a figure of evaluations, as checkpoints keep no others, and checkpoint.best is {self._goal};"
                " set --checkpoint.best eval_loss:min, or another that begins with eval_"
            )
        if self._before != str(self._goal):
            self._best, self._name, self._step = math.inf, "", -1
            self._compare_saved(context, self._goal)
        if int(context.config["checkpoint"]["keep_best"]) < 1:
            raise MtError("callback best needs the best checkpoint to be kept; set --checkpoint.keep-best 1 or more")

    def _compare_saved(self, context: CallbackContext, goal: Goal) -> None:
        """Begin with the best of the checkpoints that a resumed run has, where nothing has compared them by this figure."""
        file = None if context.output is None else context.output / "metrics.jsonl"
        if file is None or not file.is_file():
            return
        with file.open("rb") as lines:  # one by one: each rank reads them
            for line in lines:
                with suppress(ValueError, LookupError, TypeError):  # damaged, without the figure, or with null as one
                    record = json.loads(line)
                    step, value = int(record["step"]), goal.sign * float(record[goal.metric])
                    saved = file.parent / "checkpoints" / f"step-{step:08d}"
                    if step <= context.step and value < self._best and saved.is_dir():
                        self._best, self._step, self._name = value, step, saved.name

    def on_evaluate_end(self, context: CallbackContext) -> Control | None:
        """Ask for a save where the figure is better than ever."""
        assert self._goal is not None, "on_run_start comes first"
        assert context.record is not None, "an evaluation has a record"
        value = self._goal.value(context.record, "best")
        if value is None or not value < self._best:
            return None
        self._best, self._step = value, context.step
        self._name = f"step-{context.step:08d}"
        return Control(save=True)

    def on_run_end(self, context: CallbackContext) -> Control | None:
        """Whatever reads the run from now on finds the best one; a run that is to be resumed keeps its last."""
        if context.output is None or not self._name or not context.finished:
            return None
        return Control(latest=context.output / "checkpoints" / self._name)

    def state_dict(self) -> dict[str, Any]:
        """The best so far, and its checkpoint."""
        best = self._best if math.isfinite(self._best) else None
        return {"best": best, "step": self._step, "name": self._name, "goal": str(self._goal)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on comparing, unless it is another figure by then."""
        self._best = math.inf if state["best"] is None else state["best"]
        self._step, self._name = state["step"], state["name"]
        self._before = state.get("goal", "")
