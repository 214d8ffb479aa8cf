"""The tasks of GLUE (https://gluebenchmark.com): columns, question and labels of each.

Columns are those of the Hub, then those of the TSV files of the benchmark's page where they differ. Labels are indices
(the order here is the Hub's) or these words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mt_core import Dataset, Row
from mt_core.files import suffix_of

from ..delimited import DelimitedRows
from ..formats import rows_of
from .published import Item, PublishedSet, text_of


@dataclass(frozen=True, kw_only=True)
class Task:
    """``texts`` are ours → the columns that may hold it. Without labels the answer is a number with one decimal."""

    prompt: str
    texts: Mapping[str, tuple[str, ...]]
    labels: tuple[str, ...]
    label_columns: tuple[str, ...] = ("label",)
    header: tuple[str, ...] = ()


_TWO = {"sentence1": ("sentence1", "#1 String"), "sentence2": ("sentence2", "#2 String")}
_SAME = "{sentence1}\n{sentence2}\nDo these two sentences mean the same?"
_FOLLOWS = "{premise}\nDoes this imply the following?\n{hypothesis}"

TASKS: dict[str, Task] = {
    "cola": Task(
        prompt="{sentence}\nIs this sentence grammatical?",
        texts={"sentence": ("sentence",)},
        labels=("no", "yes"),
        header=("source", "label", "mark", "sentence"),
    ),
    "sst2": Task(
        prompt="{sentence}\nIs this negative or positive?",
        texts={"sentence": ("sentence",)},
        labels=("negative", "positive"),
    ),
    "mrpc": Task(prompt=_SAME, texts=_TWO, labels=("no", "yes"), label_columns=("label", "Quality")),
    "qqp": Task(
        prompt="{question1}\n{question2}\nDo these two questions ask the same?",
        texts={"question1": ("question1",), "question2": ("question2",)},
        labels=("no", "yes"),
        label_columns=("label", "is_duplicate"),
    ),
    "stsb": Task(
        prompt="{sentence1}\n{sentence2}\nHow similar are these two sentences, from 0 to 5?",
        texts=_TWO,
        labels=(),
        label_columns=("label", "score"),
    ),
    "mnli": Task(
        prompt=_FOLLOWS,
        texts={"premise": ("premise", "sentence1"), "hypothesis": ("hypothesis", "sentence2")},
        labels=("entailment", "neutral", "contradiction"),
        label_columns=("label", "gold_label"),
    ),
    "qnli": Task(
        prompt="{question}\nDoes the following answer this question?\n{sentence}",
        texts={"question": ("question",), "sentence": ("sentence",)},
        labels=("entailment", "not_entailment"),
    ),
    "rte": Task(
        prompt=_FOLLOWS,
        texts={"premise": ("sentence1",), "hypothesis": ("sentence2",)},
        labels=("entailment", "not_entailment"),
    ),
    "wnli": Task(
        prompt=_FOLLOWS,
        texts={"premise": ("sentence1",), "hypothesis": ("sentence2",)},
        labels=("not_entailment", "entailment"),
    ),
}


def glue(name: str) -> PublishedSet:
    """The set of a task."""
    task = TASKS[name]
    return PublishedSet(
        name=f"glue {name}",
        summary="",
        source="https://gluebenchmark.com",
        licence="each task has its own",
        hub="nyu-mll/glue",
        subset=name,
        items=partial(_items, task),
        prompt=task.prompt,
        response="{label}",
        read=partial(_read, task),
    )


def _items(task: Task, row: Row) -> list[Item]:
    said = {ours: text_of(row, _present_name(row, theirs)) for ours, theirs in task.texts.items()}
    label = row[_present_name(row, task.label_columns)]
    if not task.labels:
        return [{**said, "label": f"{float(label):.1f}"}]
    place = task.labels.index(label) if label in task.labels else int(label)
    if isinstance(label, float) or not 0 <= place < len(task.labels):
        raise ValueError(f"label {label!r} is none of {', '.join(task.labels)}; the test split has none")
    return [{**said, "choices": list(task.labels), "answer": place, "group": ""}]


def _present_name(row: Row, names: Sequence[str]) -> str:
    return next((name for name in names if name in row), names[0])


def _read(task: Task, files: list[Path]) -> Dataset:
    """The benchmark's own files have tabs and no quotes, and those of CoLA no header."""
    if suffix_of(files[0]) in (".tsv", ".txt"):
        return DelimitedRows(files, delimiter="\t", quote=None, header=task.header)
    return rows_of(files)
