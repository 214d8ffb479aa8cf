"""Files that the components of a run write into its folder, beside those of the core."""

from __future__ import annotations

from pathlib import Path

from mt_core.errors import ComponentError
from mt_train.assemble.parts import Parts
from mt_train.checkpoint.file_names import RECORD
from mt_train.checkpoint.folder import is_inside, read_record


def files_of_components(parts: Parts) -> list[str]:
    """Return the names of all that the chosen components write, sorted. Raises ``ComponentError`` for one outside of the folder."""
    names = set()
    for component, options in parts.components():
        for name in component.writes(options):
            if not is_inside(name):
                raise ComponentError(
                    f"{component.name!r} says that it writes {name!r} into a run's folder; writes() gives paths within it,"
                    " as in 'tables/steps.csv'"
                )
            names.add(name)
    return sorted(names)


def record_files(parts: Parts, output: Path) -> dict[str, list[str]]:
    """Return what ``about.json`` keeps of them: those of the run as it was before it was gone on with, too."""
    return {RECORD: sorted({*read_record(output), *files_of_components(parts)})}
