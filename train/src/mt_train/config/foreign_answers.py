"""Answers to keys that another program has: what they are called here, in place of a word that is only spelled alike."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from mt_core.errors import Fault

_MOST = 10
"""Keys of an unknown section that are answered, one by one."""


class _Answer(NamedTuple):
    source: str
    here: str
    remark: str


@cache
def _answers() -> dict[str, _Answer]:
    """Name, or the begin of names with a ``*`` behind it → where it comes from, what it is here, and a remark."""
    from mt_train.config.foreign_names import FOREIGN_NAMES  # a thousand names, for a key that nobody here has

    return {
        name: _Answer(source, *(part.strip() for part in answer.partition(";")[::2]))
        for source, answers in FOREIGN_NAMES.items()
        for answer, names in answers.items()
        for name in names.split()
    }


def find_answer(name: str) -> _Answer | None:
    """Return the answer to a name, spelled with underscores: its own one, else that of the longest begin with a ``*``."""
    answers = _answers()
    if name in answers:
        return answers[name]
    begins = [each for each in answers if each.endswith("*") and name.startswith(each[:-1])]
    return answers[max(begins, key=len)] if begins else None


def answer_name(key: str) -> str:
    """Say what the last part of ``key`` is called here; nothing where no other program has it, or where it is our own name."""
    name = key.replace("-", "_").rpartition(".")[2]
    found = find_answer(name)
    if found is None or found.here == f"--{key.replace('_', '-')}":
        return ""
    return f"{name} of {found.source} is {found.here} here{f'; {found.remark}' if found.remark else ''}."


def answer_component(kind: str, name: str) -> str:
    """Say what a component of another program is called here, as in ``adamw-torch``; nothing where it has no other name."""
    from mt_train.config.foreign_names import FOREIGN_COMPONENTS

    for answer, names in FOREIGN_COMPONENTS.get(kind, {}).items():
        if name in names.split():
            here, separator, remark = answer.partition(";")
            return f"It is {here} here{separator}{remark}."
    return ""


def answer_names(key: str, inside: Iterable[object]) -> str:
    """Say it of a section that is unknown here, and of the keys in it."""
    answers = [answer for answer in map(answer_name, [key, *(f"{key}.{each}" for each in inside)]) if answer]
    left = len(answers) - _MOST
    more = [f"{left} more of its keys have an answer: `mt-train --help KEY` gives each."] if left > 0 else []
    return " ".join(answers[:_MOST] + more)


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
    found = find_answer(name)
    return "_" in name or section == "train" or (found is not None and f"--{section}" in found.here)
