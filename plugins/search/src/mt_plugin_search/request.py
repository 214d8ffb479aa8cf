"""Request for a search: the run, the space, how many trials, by which figure. Checked before anything starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator

from mt_core import ConfigError, Fault, MtConfig
from mt_train.command import faults_of, merge, write_yaml

from .pruning import METRIC
from .refusals import refusals, search_notices
from .space import Dimension, read_space, size, with_values

TRIALS = 20
"""How many, unless the grid says it."""
CALLBACK = "median_pruning"


class Settings(MtConfig):
    """Settings of a search."""

    trials: int | None = Field(
        None, gt=0, le=1_000_000, description="trials in all; default 20, or the size of the grid"
    )
    metric: str = Field("eval_loss:min", description="a figure of metrics.jsonl, and min or max")
    sampler: Literal["tpe", "random", "grid"] = Field("tpe", description="how values are chosen")
    seed: int = Field(0, ge=0, description="seed of the sampler; that of each run is train.seed")
    prune: Literal["median", "none"] = Field("median", description="whether trials end early")
    prune_after: int = Field(5, gt=0, description="complete trials before any ends early")
    prune_from: int = Field(0, ge=0, description="optimizer steps before a trial may end early")
    nproc_per_node: str = Field("1", description="processes of each trial, or auto")

    @field_validator("metric")
    @classmethod
    def _figure_and_direction(cls, value: str) -> str:
        name, _, direction = value.partition(":")
        if not re.fullmatch(METRIC, name) or direction not in ("min", "max"):
            raise ValueError(f"{value!r} is no figure with min or max; write eval_loss:min or token_accuracy:max")
        return value

    @field_validator("nproc_per_node", mode="before")
    @classmethod
    def _count(cls, value: Any) -> str:
        if not re.fullmatch(r"auto|[1-9][0-9]{0,4}", str(value)):
            raise ValueError(f"a number from 1 to 99999, or auto, is needed, got {value!r}")
        return str(value)

    @property
    def figure(self) -> str:
        """The name of the figure."""
        return self.metric.partition(":")[0]

    @property
    def minimize(self) -> bool:
        """Return whether less of it is better."""
        return self.metric.endswith(":min")


@dataclass(frozen=True, kw_only=True)
class Search:
    """One search. ``raw`` is the run's config without the values that are searched."""

    raw: Mapping[str, Any]
    space: Mapping[str, Dimension]
    settings: Settings

    @property
    def trials(self) -> int:
        """Return how many trials there will be."""
        return self.settings.trials or (size(self.space) if self.settings.sampler == "grid" else None) or TRIALS

    def notices(self) -> list[str]:
        """Return what the search does that is likely not meant."""
        return search_notices(self.raw, self.space, prunes=self.settings.prune != "none")

    def with_trials(self, trials: int) -> Search:
        """Return the same search with another number of trials."""
        return replace(self, settings=self.settings.model_copy(update={"trials": trials}))

    def config_of(self, values: Mapping[str, Any], history: str | None = None) -> dict[str, Any]:
        """The config of a trial; with the callback that may end it early, where there is something to compare with."""
        raw = with_values(self.raw, values)
        if history is None:
            return raw
        options = {
            "history": history,
            "metric": self.settings.figure,
            "mode": "min" if self.settings.minimize else "max",
            "after": self.settings.prune_after,
            "first_step": self.settings.prune_from,
        }
        return merge(raw, {"callbacks": _name_optimizers(raw) | {CALLBACK: options}})

    def as_yaml(self) -> str:
        """Return what reads back as this search."""
        space = {key: dimension.as_raw() for key, dimension in self.space.items()}
        return write_yaml({"schema": 1, "config": dict(self.raw), "space": space, **self.settings.model_dump()})


def _name_optimizers(raw: Mapping[str, Any]) -> dict[str, Any]:
    given = raw.get("callbacks")
    return dict(given) if isinstance(given, Mapping) else {}


def prepare(raw: Mapping[str, Any], space: Mapping[str, Any], options: Mapping[str, Any]) -> Search:
    """The search, checked. Raises ``ConfigError`` with every fault of options, space and run at once; imports no torch."""
    settings, faults = _settings(options)
    dimensions, wrong = read_space(space)
    faults += wrong
    faults += _unlistable_faults(dimensions, settings) + _reserved_faults(raw, dimensions)
    processes = settings.nproc_per_node
    faults += refusals(
        raw, dimensions, processes=None if processes == "auto" else int(processes), metric=settings.figure
    )
    if faults:
        raise ConfigError(faults)
    return Search(raw=raw, space=dimensions, settings=settings)


def _settings(options: Mapping[str, Any]) -> tuple[Settings, list[Fault]]:
    """The settings, with defaults for those that are wrong, and what is wrong with those."""
    try:
        return Settings(**options), []
    except ValidationError as error:
        wrong = {str(each["loc"][0]) for each in error.errors()}
        faults = [fault._replace(key=fault.key.lstrip(".")) for fault in faults_of(error, Settings, "")]
        return Settings(**{key: value for key, value in options.items() if key not in wrong}), faults


def _unlistable_faults(space: Mapping[str, Dimension], settings: Settings) -> list[Fault]:
    """Ranges without end that a grid cannot go through."""
    if settings.sampler != "grid":
        return []
    fix = "Give it a step, as in 0.0..0.2/0.05, or list the values; or take --sampler tpe or random."
    return [
        Fault(key=f"search.{key}".replace("_", "-"), problem=f"{dimension} has no end of values for a grid.", fix=fix)
        for key, dimension in space.items()
        if size({key: dimension}) is None
    ]


def _reserved_faults(raw: Mapping[str, Any], space: Mapping[str, Dimension]) -> list[Fault]:
    """Keys of a run that a search has no use for."""
    train = raw.get("train")
    if "train.max_minutes" not in space and not (isinstance(train, Mapping) and train.get("max_minutes") is not None):
        return []
    problem = "a trial that the clock ends would be resumed, not compared."
    return [
        Fault(key="train.max-minutes", problem=problem, fix="Leave it out; --train.steps says how long a trial is.")
    ]
