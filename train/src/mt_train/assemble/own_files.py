"""What the components of a run write into its folder, beside what the core does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mt_core.components import Component
from mt_core.config.base import MtConfig
from mt_core.errors import ComponentError
from mt_core.hookspecs import LISTS, SLOTS
from mt_train.checkpoint.folder import RECORD, is_inside, read_record
from mt_train.plugins.resolve import Resolved


def files_of_components(resolved: Resolved) -> list[str]:
    """Return the names of all that the chosen components write, sorted. Raises ``ComponentError`` for one outside of the folder."""
    names = set()
    for component, options in _chosen(resolved):
        for name in component.writes(options):
            if not is_inside(name):
                raise ComponentError(
                    f"{component.name!r} says that it writes {name!r} into a run's folder; writes() gives paths within it,"
                    " as in 'tables/steps.csv'"
                )
            names.add(name)
    return sorted(names)


def record_files(resolved: Resolved, output: Path) -> dict[str, list[str]]:
    """Return what ``about.json`` keeps of them: those of the run as it was before it was gone on with, too."""
    return {RECORD: sorted({*read_record(output), *files_of_components(resolved)})}


def _chosen(resolved: Resolved) -> Iterator[tuple[Component, MtConfig]]:
    """Every component that takes part, with its options."""
    config = resolved.config
    for slot in SLOTS:
        yield resolved.offers[slot].component, getattr(config, slot).options
    for key, kind in LISTS.items():
        for each in getattr(config, key):
            yield resolved.offers[f"{kind}:{each.name}"].component, each.options
