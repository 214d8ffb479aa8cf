"""The sections of a config, with the defaults that hang on the components of the run, or on the environment.

Nothing here imports torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, get_args

from mt_core.components import ObjectiveComponent
from mt_core.config.base import NOTHING
from mt_train.config.run import SECTIONS
from mt_train.config.sections import LEVEL_VARIABLES, Level
from mt_train.plugins.draft import Draft


def fill_sections(draft: Draft) -> None:
    """Fill every section; a key that is ``none`` counts as left out."""
    for section, config in SECTIONS.items():
        given = {key: None if value in NOTHING else value for key, value in draft.raw.get(section, {}).items()}
        if section == "data":
            _add_defaults_of_objective(draft, given)
        if section == "log":
            given = _levels_of_the_environment(draft, without=given) | given
        if section == "train" and given.get("steps") is None and given.get("epochs") is None:
            given["epochs"] = 1.0
        options = draft.validate(config, given, section)
        if options is not None:
            draft.values[section] = options


def _add_defaults_of_objective(draft: Draft, given: dict[str, Any]) -> None:
    """Add how rows are cut and put together for the run's objective, where nothing is said of it."""
    offer = draft.offers.get("objective")
    if offer is None or not isinstance(offer.component, ObjectiveComponent):
        return
    objective = offer.component
    default = SECTIONS["train"].model_fields["sequence_len"].default
    length = draft.raw.get("train", {}).get("sequence_len", default)
    values = {
        "batching": _default_batching(draft, objective),
        "truncation": objective.truncation,
        "max_len": length if isinstance(length, int) and length > 1 else default,  # else a fault of its own
    }
    for key, value in values.items():
        if given.get(key) is not None:
            continue
        given[key] = value
        is_own = value == getattr(objective, key, value)
        draft.origins[f"data.{key}"] = (
            f"objective {objective.name}" if is_own else f"model {draft.raw['model']['name']}"
        )


def _default_batching(draft: Draft, objective: ObjectiveComponent) -> str:
    """Return the objective's, or padding for a model that takes one document a row: no command has to say so, those without rows least."""
    model, family = draft.values.get("model"), draft.offers.get("model")
    if model is None or family is None or family.component.limits is None:
        return objective.batching
    return "padding" if "packing" in family.component.limits(model.options) else objective.batching


def _levels_of_the_environment(draft: Draft, *, without: Mapping[str, Any]) -> dict[str, str]:
    """Return the levels of ``log`` that only the environment has."""
    levels, found = get_args(Level), {}
    for key, variable in LEVEL_VARIABLES.items():
        level = os.environ.get(variable)
        if not level or key in without:
            continue
        if level in levels:
            found[key], draft.origins[f"log.{key}"] = level, variable
            continue
        problem = f"is {level!r}, from the environment variable {variable}."
        draft.fault(f"log.{key}", problem, f"Set that to one of {', '.join(levels)}, or unset it.")
    return found
