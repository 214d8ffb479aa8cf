"""The search: one trial after the other, until there are enough."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core import MtError, UsageError
from mt_train import RunConfig
from mt_train.command import duration, expand, installed_kinds, merge, next_run_folder, notice, read_config

from .folder import Folder, refuse_other, unusable_error
from .process import STOPPED, Order, Runner, Watch, last_words
from .request import Search, prepare
from .space import option_text, size
from .trials import Trial, read_run

if TYPE_CHECKING:
    from .study import Study

FAILURES = 3
"""So many failures before any success end a search: the next would fail too."""


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """Result of a search. ``best`` is the best complete trial; ``stopped`` the signal that ended it early, if one did."""

    output: Path
    metric: str
    best: Trial | None
    trials: tuple[Trial, ...]
    stopped: str = ""


def search(
    config: RunConfig | Mapping[str, Any] | str | Path | None = None,
    space: Mapping[str, Any] | str | Path | None = None,
    *,
    output: str | Path = "auto",
    resume: bool = False,
    **options: Any,
) -> SearchResult:
    """Search, as ``mt-search`` does; ``options`` are the fields of ``Settings`` (``trials``, ``metric``, ``sampler`` …).

    ``config`` is a run's, ``space`` maps keys to ranges or choices. ``output`` is the search's folder, ``auto`` for
    ``searches/<model>-NNN``. With ``resume`` the search in ``output`` goes on; only ``trials`` and ``nproc_per_node`` may
    then be given. While it searches, the first Ctrl-C saves the running trial and returns. Raises ``MtError``.
    """
    if resume:
        if config is not None or space is not None or output == "auto":
            raise UsageError("resume goes on with the search in output: give that folder, and neither config nor space")
        folder = Folder(Path(expand(str(output))))
        return go_on(folder, with_options(folder.read_search(), options))
    raw = merge({}, config.as_raw() if isinstance(config, RunConfig) else _read(config), installed_kinds())
    wanted = prepare(raw, _read(space), options)
    return begin(new_folder(output, wanted), wanted)


def _read(source: Mapping[str, Any] | str | Path | None) -> dict[str, Any]:
    return read_config(expand(str(source))) if isinstance(source, str | Path) else merge({}, source or {})


def with_options(stored: Search, options: Mapping[str, Any]) -> Search:
    """The stored search with what may change. Raises ``ConfigError`` for the rest."""
    return prepare(
        stored.raw,
        {key: each.as_raw() for key, each in stored.space.items()},
        {**stored.settings.model_dump(), **options},
    )


def new_folder(output: str | Path, wanted: Search) -> Folder:
    """Return where a search goes: the given folder, or the next free one."""
    if output != "auto":
        return Folder(Path(expand(str(output))))
    model = wanted.raw.get("model")
    name = str(model.get("name") if isinstance(model, Mapping) else model)
    return Folder(next_run_folder(name.rpartition("/")[2], Path("searches")))


def begin(folder: Folder, wanted: Search, runner: Runner | None = None) -> SearchResult:
    """A new search. Raises ``UsageError`` where the folder has one."""
    if not folder.is_new():
        raise unusable_error(folder.path)
    for note in wanted.notices():
        notice(note)
    with folder.hold():
        if not folder.is_new():
            raise unusable_error(folder.path)
        folder.write_search(wanted)
        return _search(folder, wanted, runner)


def go_on(folder: Folder, wanted: Search, runner: Runner | None = None) -> SearchResult:
    """A search that was begun, with more trials perhaps."""
    with folder.hold():
        refuse_other(folder.read_search(), wanted, folder.path)
        folder.write_search(wanted)
        return _search(folder, wanted, runner)


def _search(folder: Folder, wanted: Search, runner: Runner | None) -> SearchResult:
    from .study import Study  # Optuna and numpy load from here on

    watch = Watch()
    with watch.listen():
        study = Study(folder.path, wanted)
        before = len(_ended_trials(study.trials))
        while not watch.signal and (reason := _reason_to_end(study.trials, wanted, before)) is None:
            ended = _one(folder, wanted, study, runner or watch.run)
            if ended is None:
                watch.signal = watch.signal or "another process"
                break
            _publish(folder, wanted, study, ended)
        if not watch.signal and reason:
            notice(reason)
        _publish(folder, wanted, study)
    return SearchResult(
        output=folder.path,
        metric=wanted.settings.figure,
        best=study.best,
        trials=tuple(study.trials),
        stopped=watch.signal,
    )


def _ended_trials(trials: list[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.state != "running"]


def _reason_to_end(trials: list[Trial], wanted: Search, before: int) -> str | None:
    """Return the reason why no further trial begins (empty: there are enough); ``None`` where one does.

    ``before`` trials had ended when this process began: one that goes on tries anew. Raises ``MtError`` where all fail.
    """
    ended = _ended_trials(trials)
    failed = len(ended) - before if all(trial.state == "failed" for trial in ended) else 0
    if failed >= min(FAILURES, wanted.trials):
        raise MtError(
            f"the first {failed} trials failed, so the search ends; the last one said: {ended[-1].error.rstrip('.')}."
            f" Its whole output is in logs/{ended[-1].run}.log"
        )
    if len(ended) >= wanted.trials:
        return ""
    if has_tried_all(wanted, ended):
        return f"notice: all {size(wanted.space)} combinations were tried, so the search ends after {len(ended)} trials"
    return None


def has_tried_all(wanted: Search, trials: Sequence[Trial]) -> bool:
    """Return whether trials had every combination of the space; never of an endless one."""
    count = size(wanted.space)
    return count is not None and len({trial.labels for trial in trials}) >= count


def _one(folder: Folder, wanted: Search, study: Study, run: Runner) -> Trial | None:
    """Begin a trial, or go on with the one that was cut short, and write down what came of it; ``None`` where it was stopped."""
    trial = study.begin()
    notice(f"trial {trial.number} of {wanted.trials}: {_values(trial)}")
    if twin := _twin(trial, study):
        notes: dict[str, Any] = {"steps": twin.steps, "seconds": 0.0, "run": twin.run, "error": twin.error}
        ended = study.end(twin.state, value=twin.value, evaluations=twin.evaluations, **notes)
        notice(f"  the same values as trial {twin.number}, so it has its figures")
        return ended
    began = time.monotonic()
    place = folder.run(trial.number)
    if not (place / "completed").exists():  # else the search was killed after the run, before it was written down
        code = run(_order(folder, wanted, study, trial))
        if code and not (place / "completed").exists():
            if code in (STOPPED, 130):
                return None
            return _fail_trial(folder, study, trial, began, last_words(folder.log(trial.number), code))
    ended = _read_back(folder, wanted, study, trial, began)
    notice(f"  {_summary(ended, wanted.settings.figure)}")
    return ended


def _values(trial: Trial) -> str:
    return ", ".join(
        f"{key.removesuffix('.name').replace('_', '-')} {_shorten(value)}" for key, value in trial.values.items()
    )


def _shorten(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else option_text(value)


def _twin(trial: Trial, study: Study) -> Trial | None:
    """An earlier trial with the same values: it would come to the same."""
    ended = (each for each in study.trials if each.number < trial.number and each.state in ("complete", "pruned"))
    return next((each for each in ended if each.labels == trial.labels), None)


def _order(folder: Folder, wanted: Search, study: Study, trial: Trial) -> Order:
    compared = wanted.settings.prune == "median"
    if compared:
        folder.write_history(study.history)
    raw = wanted.config_of(trial.values, str(folder.history.absolute()) if compared else None)
    return Order(
        config=folder.write_config(trial.number, raw),
        run=folder.run(trial.number),
        log=folder.log(trial.number),
        processes=wanted.settings.nproc_per_node,
    )


def _read_back(folder: Folder, wanted: Search, study: Study, trial: Trial, began: float) -> Trial:
    """Read what the run left. Raises ``MtError`` where it never had the figure: no trial will."""
    place = folder.run(trial.number)
    try:
        left = read_run(place, wanted.settings.figure)
    except MtError as error:
        _fail_trial(folder, study, trial, began, str(error))
        raise
    notes: dict[str, Any] = {"steps": left.steps, "seconds": time.monotonic() - began, "run": place.name}
    early = left.steps < left.total_steps and wanted.settings.prune == "median"
    if left.value is None:
        text = f"{wanted.settings.figure} is not a number"
        return study.end("failed", evaluations=left.evaluations, error=text, **notes)
    if early and study.is_worse(left.evaluations):
        return study.end("pruned", evaluations=left.evaluations, **notes)
    return study.end("complete", value=left.value, evaluations=left.evaluations, **notes)


def _fail_trial(folder: Folder, study: Study, trial: Trial, began: float, said: str) -> Trial:
    notice(f"  failed: {said}")
    seconds = time.monotonic() - began
    return study.end("failed", evaluations={}, error=said, seconds=seconds, run=folder.run(trial.number).name)


def _summary(trial: Trial, metric: str) -> str:
    if trial.state == "failed":
        return f"failed: {trial.error}"
    figure = trial.last
    early = f", ended early after {trial.steps} steps" if trial.state == "pruned" else ""
    return f"{metric} {figure:.4f} in {duration(trial.seconds)}{early}"


def _publish(folder: Folder, wanted: Search, study: Study, trial: Trial | None = None) -> None:
    """Write what people look at, after every trial: a search that is killed has it too."""
    metric = wanted.settings.figure
    folder.write_table(study.trials, list(wanted.space), metric)
    best = study.best
    if best is not None and (trial is None or best.number == trial.number):
        folder.write_best(best, metric)
