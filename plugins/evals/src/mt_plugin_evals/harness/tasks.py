"""Tasks of lm-evaluation-harness: found by name, loaded, and checked before the model is asked anything.

Imports lm_eval, which takes seconds: imported when the evaluation runs.
"""

from __future__ import annotations

import logging
import os
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from lm_eval.tasks import TaskManager

from mt_core import DataError, MtError, UsageError, did_you_mean, first_line

from .config import HarnessConfig

_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
_FLAGS = {
    "huggingface_hub.constants": "HF_HUB_OFFLINE",
    "datasets.config": "HF_HUB_OFFLINE",
}
"""Where libraries that are imported already keep what they have read of the environment."""
_BARS = ("lm_eval.api.task", "lm_eval.api.metrics", "lm_eval.api.model")
_LOGGER = logging.getLogger("lm_eval")
_SEED = 0
"""Seed of ``random``, as in lm-evaluation-harness; NumPy's is an option."""


@dataclass(frozen=True)
class Tasks:
    """Tasks that the user asked for: ``asked`` are the names of groups and tasks whose figures come first.

    For a group that adds nothing up, as ``openllm``, these are its groups and tasks.
    """

    tasks: Mapping[str, Any]
    groups: Mapping[str, Any]
    asked: tuple[str, ...]

    @property
    def task_dict(self) -> dict[str, Any]:
        """Return what ``lm_eval.evaluator.evaluate`` takes."""
        return {"tasks": dict(self.tasks), "groups": dict(self.groups)}


@dataclass(frozen=True)
class Files:
    """Task files: those of the user's folder alone where ``local``."""

    manager: Any
    local: bool


def load_tasks(config: HarnessConfig, files: Files) -> Tasks:
    """Load the tasks with their rows. Raises ``UsageError`` for what cannot be asked, ``DataError`` for rows that are not there."""
    tasks: dict[str, Any] = {}
    groups: dict[str, Any] = {}
    asked: list[str] = []
    for name in config.tasks:
        found = _load(files, name)
        if twice := sorted(set(found["tasks"]) & set(tasks)):
            raise UsageError(
                f"evaluations.harness.tasks: {twice[0]!r} is asked for twice, the second time by {name!r}; drop one"
            )
        tasks |= found["tasks"]
        groups |= found["groups"]
        asked += _name_figures(found["groups"][name]) if name in found["groups"] else list(found["tasks"])
    for name, task in tasks.items():
        _refuse(name, task, config)
        _set_shots(task, config)
    return Tasks(tasks, groups, tuple(asked))


def _name_figures(group: Any) -> list[str]:
    """Return what a group's figures are called: by its own name, or where it has none by those of its groups and tasks."""
    if group.has_aggregation:
        return [group.name]
    inner = {each.name: each for each in group if hasattr(each, "has_aggregation")}
    return [
        name for child in group.child_names for name in (_name_figures(inner[child]) if child in inner else [child])
    ]


def find_tasks(config: HarnessConfig) -> Files:
    """Find the files of the tasks: in the user's folder alone where they all are, for thousands of others are read otherwise.

    Raises ``UsageError`` for a name that is nowhere.
    """
    local = False
    if config.include is None:
        manager = TaskManager()
    else:
        folder = Path(config.include).expanduser()
        if not folder.is_dir():
            raise UsageError(
                f"evaluations.harness.include: {folder} is no folder; give the one with your task files (*.yaml)"
            )
        manager = TaskManager(include_path=str(folder), include_defaults=False)
        local = set(config.tasks) <= set(manager.all_tasks)
        if not local:
            manager = TaskManager(include_path=str(folder))
    if unknown := [name for name in config.tasks if name not in manager.all_tasks]:
        where = "" if config.include is None else f" or in {config.include}"
        raise UsageError(
            f"evaluations.harness.tasks: no task, group or tag {unknown[0]!r} in lm-evaluation-harness{where}."
            f" {did_you_mean(unknown[0], manager.all_tasks)}`lm_eval ls tasks` lists them all"
        )
    return Files(manager, local)


def _load(files: Files, name: str) -> Any:
    try:
        return files.manager.load([name])
    except MtError:
        raise
    except Exception as error:  # task files run code, and rows come from anywhere: whatever fails is the task's
        near = (
            "its files, with one row at least, have to be on this machine"
            if files.local
            else "it may need a network, or an access token"
        )
        raise DataError(
            f"task {name} of lm-evaluation-harness cannot be loaded ({type(error).__name__}: {first_line(error)});"
            f" {near}. Task files of your own read local rows: --evaluations.harness.include FOLDER"
        ) from error


def _refuse(name: str, task: Any, config: HarnessConfig) -> None:
    if getattr(task, "UNSAFE_CODE", False) and not config.run_untrusted_code:
        raise UsageError(
            f"task {name} runs code that the model wrote; allow it with --evaluations.harness.run-untrusted-code true, on a machine"
            " where that may do no harm"
        )
    if getattr(task, "MULTIMODAL", False):
        raise UsageError(f"task {name} shows images or sounds, and the model reads text alone; leave it out")
    if not len(task.eval_docs):
        raise DataError(f"task {name} has no rows to ask; look at its test_split and data_files")


def _set_shots(task: Any, config: HarnessConfig) -> None:
    """Give a task its shots, as ``simple_evaluate`` does: one that says 0 keeps them."""
    own = task.get_config("num_fewshot")
    if own is None or (config.shots is not None and own != 0):
        task.set_config(key="num_fewshot", value=config.shots or 0)
    task.set_fewshot_seed(seed=config.seed)


def generates(task: Any) -> bool:
    """Return whether a task lets the model write."""
    return bool(task.get_config("output_type") == "generate_until")


@contextmanager
def seed_generators(seed: int) -> Iterator[None]:
    """Seed Python's and NumPy's generators, from which some tasks draw, and put them back as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    random.seed(_SEED)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@contextmanager
def silence(*, offline: bool) -> Iterator[None]:
    """Show no bars and warnings of lm_eval's, as every rank would at every evaluation, and where ``offline`` ask no network.

    All is put back.
    """
    import datasets

    found = [module for module in map(import_module, _BARS) if hasattr(module, "tqdm")]
    changes: list[tuple[Any, str, Any]] = [(module, "tqdm", partial(module.tqdm, disable=True)) for module in found]
    if offline:
        changes += [(sys.modules[name], flag, True) for name, flag in _FLAGS.items() if name in sys.modules]
    changes = [change for change in changes if hasattr(change[0], change[1])]
    before = [(module, name, getattr(module, name)) for module, name, _ in changes]
    environment = {name: os.environ.get(name) for name in _OFFLINE}
    bars, level = not datasets.utils.are_progress_bars_disabled(), _LOGGER.level
    datasets.disable_progress_bars()
    _LOGGER.setLevel(logging.ERROR)
    for module, name, value in changes:
        setattr(module, name, value)
    if offline:
        os.environ.update(dict.fromkeys(_OFFLINE, "1"))
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
        _LOGGER.setLevel(level)
        if bars:
            datasets.enable_progress_bars()
        for name, old in environment.items():
            if old is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = old
