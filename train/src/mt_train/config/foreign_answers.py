"""Answers to keys that another program has: what they are called here, in place of a word that is only spelled alike."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from mt_core.errors import Fault
from mt_train.config.foreign_names import FOREIGN_COMPONENTS, FOREIGN_NAMES

_MOST = 10
"""Keys of an unknown section that are answered, one by one."""


@cache
def _answers() -> dict[str, tuple[str, ...]]:
    """Name → where it comes from, what it is here, and a remark."""
    return {
        name: (source, *(part.strip() for part in answer.partition(";")[::2]))
        for source, answers in FOREIGN_NAMES.items()
        for answer, names in answers.items()
        for name in names.split()
    }


def answer_name(key: str) -> str:
    """Say what the last part of ``key`` is called here; nothing where no other program has it, or where it is our own name."""
    name = key.replace("-", "_").rpartition(".")[2]
    source, here, remark = _answers().get(name, ("", "", ""))
    if not here or here == f"--{key.replace('_', '-')}":
        return ""
    return f"{name} of {source} is {here} here{f'; {remark}' if remark else ''}."


def answer_component(kind: str, name: str) -> str:
    """Say what a component of another program is called here, as in ``adamw-torch``; nothing where it has no other name."""
    for answer, names in FOREIGN_COMPONENTS.get(kind, {}).items():
        if name in names.split():
            return f"It is {answer} here."
    return ""


def answer_names(key: str, inside: Iterable[object]) -> str:
    """Say it of a section that is unknown here, and of the keys in it."""
    answers = map(answer_name, [key, *(f"{key}.{each}" for each in inside)])
    return " ".join([answer for answer in answers if answer][:_MOST])


def answer_fault(fault: Fault) -> Fault:
    """The fault of an unknown key of a slot or section, with the answer as its fix; any other one as it is.

    Options of a named component (``callbacks.ema.seed``) and what is nested deeper have names of its author's, not of a program's.
    """
    if fault.problem != "no such key." or fault.key.count(".") != 1 or not _is_meant(*fault.key.split(".")):
        return fault
    answer = answer_name(fault.key)
    return fault._replace(fix=answer) if answer else fault


def _is_meant(section: str, key: str) -> bool:
    """Whether a key of a section that we have is another program's: ``parallel.stage`` and ``optimizer.beta`` are likelier misspelt.

    A word by itself means too much; it is taken for theirs where all their names may stand, and where ours is.
    """
    name = key.replace("-", "_")
    return "_" in name or section == "train" or f"--{section}" in _answers().get(name, ("", ""))[1]
