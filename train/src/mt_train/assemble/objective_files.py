"""Files beside exported weights with what an objective has trained beside the language head, such as ``value_head.safetensors``.

A file has the name of the module, and its tensors their own names in the objective, as ``value_head.weight``. What reads the weights
alone does not see it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mt_core.nn.objective import split_objective_name
from mt_core.weights.files import open_safetensors

if TYPE_CHECKING:
    from mt_train.engine.build import TensorSource


def objective_files(names: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
    """Return for each file its tensors, and the model's name of each; for an objective without modules none."""
    files: dict[str, dict[str, str]] = {}
    for name in names:
        if split := split_objective_name(name):
            files.setdefault(f"{split[1].partition('.')[0]}.safetensors", {})[split[1]] = name
    return files


def read_objective(folder: Path, names: Iterable[str]) -> TensorSource:
    """Return the tensors that lie beside weights in a folder, by the names that the model has for them; those that it has not are left.

    Raises ``WeightsError`` for a file that is damaged.
    """
    found: TensorSource = {}
    for file, tensors in objective_files(names).items():
        if (folder / file).is_file():
            given = open_safetensors(folder / file)
            found = {**found, **{tensors[own]: load for own, load in given.items() if own in tensors}}
    return found
