"""The trials so far, in Optuna's journal, and which values come next.

Each trial draws with a seed of its own, made of the search's and its number: a search that was stopped and resumed has
the same trials as one that was not.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import optuna
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from mt_core import MtError

from .pruning import Figures, median_pruner
from .request import Search
from .space import Choices, Dimension, Value, combinations, option_text
from .trials import State, Trial

JOURNAL = "study.journal"
NAME = "search"
_STATES: dict[TrialState, State] = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}


class Study:
    """The trials of one search. Whoever opens it holds the search's folder."""

    def __init__(self, folder: Path, search: Search) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._search = search
        settings = search.settings
        self._study = optuna.create_study(
            storage=_open(folder / JOURNAL),
            study_name=NAME,
            direction="minimize" if settings.minimize else "maximize",
            pruner=median_pruner(after=settings.prune_after, first_step=settings.prune_from),
            load_if_exists=True,
        )
        self._current: optuna.trial.Trial | None = None

    @property
    def trials(self) -> list[Trial]:
        """All that were begun, in order."""
        return [self._trial_of(each) for each in self._study.get_trials(deepcopy=False)]

    @property
    def best(self) -> Trial | None:
        """The complete one with the best figure; of equal ones the first."""
        complete = [trial for trial in self.trials if trial.state == "complete" and trial.value is not None]
        sign = 1 if self._search.settings.minimize else -1
        return min(complete, key=lambda trial: sign * (trial.value or 0.0), default=None)

    @property
    def history(self) -> list[Figures]:
        """Figures of the complete trials, for those that come."""
        return [dict(trial.evaluations) for trial in self.trials if trial.state == "complete" and trial.evaluations]

    def begin(self) -> Trial:
        """The next trial, or the one that was cut short."""
        known = self._study.get_trials(deepcopy=False)
        cut = next((each for each in known if not each.state.is_finished()), None)
        number = len(known) if cut is None else cut.number
        self._study.sampler = self._sampler(number)
        if cut is None and self._search.settings.sampler == "grid":
            self._study.enqueue_trial(self._in_grid(number))
        begun = cut is not None and cut.state == TrialState.RUNNING
        self._current = optuna.trial.Trial(self._study, cut._trial_id) if cut and begun else self._study.ask()
        for key, dimension in self._search.space.items():
            _suggest(self._current, key, dimension)
        return self.trials[self._current.number]

    def end(self, state: State, *, value: float | None = None, evaluations: Mapping[int, float], **notes: Any) -> Trial:
        """Write down what came of the trial that was begun last. ``notes`` are fields of ``Trial``."""
        assert self._current is not None, "begin comes first"
        trial, self._current = self._current, None
        for name, note in notes.items():
            trial.set_user_attr(name, note)
        known = self._study.trials[trial.number].intermediate_values
        for step, figure in evaluations.items():
            if step not in known:
                trial.report(figure, step)
        told = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}[state]
        self._study.tell(trial, value if state == "complete" else None, state=told)
        return self.trials[trial.number]

    def is_worse(self, evaluations: Mapping[int, float]) -> bool:
        """Return whether the rule gives up a trial with these figures."""
        assert self._current is not None, "begin comes first"
        for step, figure in evaluations.items():
            self._current.report(figure, step)
        return self._current.should_prune()

    def _sampler(self, number: int) -> BaseSampler:
        settings = self._search.settings
        seed = int.from_bytes(hashlib.sha256(f"{settings.seed}:{number}".encode()).digest()[:4])
        return TPESampler(seed=seed) if settings.sampler == "tpe" else RandomSampler(seed=seed)

    def _in_grid(self, number: int) -> dict[str, Any]:
        values = next(islice(combinations(self._search.space), number, None))
        return {key: self._journal_value(key, value) for key, value in values.items()}

    def _journal_value(self, key: str, value: Value) -> Any:
        """Return the journal's value: choices by their text, which JSON keeps apart where Python takes 1, 1.0 and true for one."""
        return option_text(value) if isinstance(self._search.space[key], Choices) else value

    @cached_property
    def _choices(self) -> dict[str, dict[str, Value]]:
        return {
            key: {option_text(value): value for value in dimension.values}
            for key, dimension in self._search.space.items()
            if isinstance(dimension, Choices)
        }

    def _trial_of(self, frozen: FrozenTrial) -> Trial:
        values = {key: self._read(key, frozen.params[key]) for key in self._search.space if key in frozen.params}
        return Trial(
            number=frozen.number + 1,
            state=_STATES.get(frozen.state, "running"),
            values=values,
            value=frozen.value if frozen.state == TrialState.COMPLETE else None,
            evaluations=frozen.intermediate_values,
            **{name: note for name, note in frozen.user_attrs.items() if name in Trial.__dataclass_fields__},
        )

    def _read(self, key: str, written: Any) -> Value:
        return self._choices[key][written] if key in self._choices else written


def _suggest(trial: optuna.trial.Trial, key: str, dimension: Dimension) -> None:
    if isinstance(dimension, Choices):
        trial.suggest_categorical(key, [option_text(value) for value in dimension.values])
    elif dimension.whole:
        trial.suggest_int(
            key, int(dimension.low), int(dimension.high), step=int(dimension.step or 1), log=dimension.log
        )
    else:
        trial.suggest_float(key, dimension.low, dimension.high, step=dimension.step, log=dimension.log)


def _open(path: Path) -> JournalStorage:
    """The journal, without a line that a kill cut short. Raises ``MtError`` where it cannot be read."""
    Path(f"{path}.lock").unlink(missing_ok=True)  # of a search that was killed: the folder is ours
    if path.exists():
        whole = path.read_bytes().rpartition(b"\n")
        if whole[2]:
            os.truncate(path, len(whole[0]) + len(whole[1]))
    try:
        return JournalStorage(JournalFileBackend(str(path)))
    except (ValueError, KeyError, TypeError) as error:
        raise MtError(f"{path} is damaged ({error}); put it back from a copy, or start a new search") from error
