"""The folder of a search: what it is asked, its journal, a folder for each trial's run, and what people look at."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mt_core import ConfigError, Fault, MtError, UsageError
from mt_train.command import hold_lock, notice, read_config, replace_text, write_yaml

from .pruning import HISTORY, Figures
from .request import CALLBACK, Search, prepare
from .space import option_text
from .trials import Trial

SEARCH, TABLE, BEST, LOCK = "search.yaml", "trials.csv", "best.yaml", ".lock"


class Folder:
    """Paths and files of a search; ``hold_lock`` by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def history(self) -> Path:
        """Figures of the complete trials, for the callback of the next."""
        return self.path / HISTORY

    def run(self, number: int) -> Path:
        """The folder of a trial's run."""
        return self.path / f"trial-{number:03d}"

    def log(self, number: int) -> Path:
        """Return the log of a trial."""
        return self.path / "logs" / f"trial-{number:03d}.log"

    def config(self, number: int) -> Path:
        """Return the config of a trial."""
        return self.path / "configs" / f"trial-{number:03d}.yaml"

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the folder. Raises ``OutputError`` where another search does, ``UsageError`` where it cannot be written."""
        try:
            for each in (self.path, self.path / "logs", self.path / "configs"):
                each.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"output {self.path} cannot be written: {error.strerror}; choose another --output"
            ) from error
        with hold_lock(self.path / LOCK) as note:
            self._refuse_links()
            if note:
                notice(note)
            yield

    def _refuse_links(self) -> None:
        """Refuse links, through which the search never writes: it may lead anywhere."""
        folders = (self.path, self.path / "logs", self.path / "configs")
        own_lock = "study.journal.lock"  # Optuna's, which is a link
        links = [*(each for each in folders[1:] if each.is_symlink())]
        links += [
            each for folder in folders for each in folder.iterdir() if each.is_symlink() and each.name != own_lock
        ]
        if links:
            names = ", ".join(sorted({each.relative_to(self.path).as_posix() for each in links}))
            raise UsageError(f"output {self.path} has links where a search writes: {names}; remove them")

    def is_new(self) -> bool:
        """Return whether a search can begin here. Raises ``UsageError`` for a folder with other things in it."""
        if (self.path / SEARCH).is_file():
            return False
        if self.path.exists() and (
            not self.path.is_dir() or {each.name for each in self.path.iterdir()} - {LOCK, "logs", "configs"}
        ):
            raise UsageError(f"output {self.path} is no search and not empty; choose another --output")
        return True

    def read_search(self) -> Search:
        """The search that was begun here. Raises ``UsageError`` where there is none."""
        path = self.path / SEARCH
        if not path.is_file():
            raise UsageError(
                f"{self.path} holds no search that could go on (it has no {SEARCH}); give a search's folder"
            )
        content = read_config(path)
        content.pop("schema", None)
        return prepare(content.pop("config", {}), content.pop("space", {}), content)

    def write_search(self, search: Search) -> None:
        """Write what is asked; before anything else, so that whatever is here can go on."""
        replace_text(self.path / SEARCH, search.as_yaml())

    def write_config(self, number: int, raw: Mapping[str, Any]) -> Path:
        """The config of a trial."""
        path = self.config(number)
        replace_text(path, f"# trial {number} of a search; `mt-train --config` takes it\n{write_yaml(dict(raw))}")
        return path

    def write_history(self, history: Sequence[Figures]) -> None:
        """Write what the next trial is compared with."""
        replace_text(self.history, json.dumps(history) + "\n")

    def write_table(self, trials: Sequence[Trial], keys: Sequence[str], metric: str) -> None:
        """One line a trial, for people and their spreadsheets."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["trial", "state", metric, *keys, "steps", "seconds", "run", "error"])
        for trial in trials:
            values = [option_text(trial.values[key]) if key in trial.values else "" for key in keys]
            value = "" if trial.value is None else repr(trial.value)
            seconds = f"{trial.seconds:.1f}"
            writer.writerow([trial.number, trial.state, value, *values, trial.steps, seconds, trial.run, trial.error])
        replace_text(self.path / TABLE, text.getvalue())

    def write_best(self, trial: Trial, metric: str) -> None:
        """The config of the best run as it was resolved, without what ended trials early."""
        raw = read_config(self.path / trial.run / "run.yaml")
        others = [each for each in raw.pop("callbacks", []) if str(each.get("name")).replace("-", "_") != CALLBACK]
        raw |= {"callbacks": others} if others else {}
        head = f"# {trial.run}: {metric} {trial.value:.6g}\n"
        replace_text(self.path / BEST, head + write_yaml(raw))


def refuse_other(stored: Search, given: Search, path: Path) -> None:
    """Raises ``ConfigError`` with each key in which a search that goes on is not the one that was begun."""
    before, now = _flatten(stored), _flatten(given)
    faults = [
        Fault(
            key=key.replace("_", "-"),
            problem=f"is {now.get(key)!r}, and {before.get(key)!r} in the search {path}.",
            fix="A search that goes on keeps it: leave it as it was, or start a new one.",
        )
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and key not in ("trials", "nproc_per_node")
    ]
    if faults:
        raise ConfigError(faults)


def _flatten(search: Search) -> dict[str, Any]:
    space = {f"search.{key}": str(dimension) for key, dimension in search.space.items()}
    return dict(_leaves(search.raw)) | space | search.settings.model_dump()


def _leaves(raw: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in raw.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", list(value) if isinstance(value, tuple) else value


def unusable_error(folder: Path) -> MtError:
    """Another search has come meanwhile."""
    return UsageError(
        f"output {folder} already holds a search; go on with --resume {folder}, or choose another --output"
    )
