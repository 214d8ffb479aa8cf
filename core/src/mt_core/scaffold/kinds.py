"""What can be written: for each kind of plugin what its templates cannot say themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FAMILY, FAMILY_PLUGIN = "llama", "mt-plugin-llama"
"""The model that other kinds are tried with, and where it comes from."""

_FAMILY = f"--model {FAMILY}"

WITH_COMMANDS = ("model",)
"""Kinds whose distribution brings the commands (mt-tools), so that to install it is enough to train; the others have an extra."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """``kind`` as hooks have it; ``modules`` (file → what is in it); ``try_it`` is what to type to use one named ``{name}``."""

    kind: str
    summary: str
    modules: Mapping[str, str]
    try_it: str
    imports_torch: bool = False


KINDS: Mapping[str, Kind] = {
    "model": Kind(
        kind="model",
        summary="A small decoder",
        modules={
            "config.py": "the shape of the model, and its named sizes as data",
            "model.py": "the modules, and the order in which they run",
        },
        try_it="mt-train --model {name}",
        imports_torch=True,
    ),
    "adapter": Kind(
        kind="adapter",
        summary="A LoRA with gates",
        modules={
            "config.py": "options, with bounds and descriptions",
            "layer.py": "the layer that takes the place of a projection",
        },
        try_it=f"mt-train {_FAMILY} --adapter {{name}}",
        imports_torch=True,
    ),
    "dataset": Kind(
        kind="dataset",
        summary="Prompts and responses from text files",
        modules={"dataset.py": "options, and how a row is read"},
        try_it=f"mt-train {_FAMILY} --dataset {{name}} --dataset.path FILE",
    ),
    "tokenizer": Kind(
        kind="tokenizer",
        summary="A tokenizer of hexadecimal digits",
        modules={"tokenizer.py": "options, text to ids, and back"},
        try_it=f"mt-train {_FAMILY} --tokenizer {{name}}",
    ),
    "objective": Kind(
        kind="objective",
        summary="Next-token prediction with a context that is not learned",
        modules={
            "config.py": "options, with bounds and descriptions",
            "objective.py": "how a row becomes tokens, and which of them are learned",
        },
        try_it=f"mt-train {_FAMILY} --objective {{name}}",
    ),
    "optimizer": Kind(
        kind="optimizer",
        summary="An optimizer that follows the sign of the mean gradient",
        modules={"config.py": "options, with bounds and descriptions", "optimizer.py": "the update of one tensor"},
        try_it=f"mt-train {_FAMILY} --optimizer {{name}}",
        imports_torch=True,
    ),
    "schedule": Kind(
        kind="schedule",
        summary="A learning rate that decays with a power",
        modules={"schedule.py": "options, and the rate as a function of the update"},
        try_it=f"mt-train {_FAMILY} --schedule {{name}}",
    ),
    "task-print": Kind(
        kind="task_print",
        summary="A line with the perplexity",
        modules={"line.py": "options, and the line"},
        try_it=f"mt-train {_FAMILY} --task-print {{name}}",
    ),
    "callback": Kind(
        kind="callback",
        summary="A callback that ends a run",
        modules={"callback.py": "options, and what is done when"},
        try_it=f"mt-train {_FAMILY} --callbacks {{name}} --callbacks.{{name}}.loss 2",
    ),
}
"""What a person types → what is written."""
