"""The classic sets of questions with choices, as ``table`` has the others, and readers of the files in which they were published."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from mt_core import DataError, Dataset, Row
from mt_core.files import JsonRows, SpanIndex, paragraphs, suffix_of

from ..delimited import DelimitedRows
from ..formats import rows_of
from . import items
from .published import PublishedSet

_LABELS = ".lst"
_LETTERED = "{context}\n\n{question}\n{choices}\nAnswer:"


class _Blocks:
    """Blocks of lines between blank lines, as rows ``{"text"}``."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._index = SpanIndex(files, paragraphs)

    def __len__(self) -> int:
        return len(self._index)

    def row(self, index: int) -> Row:
        piece = self._index.read(index)
        return {"id": piece.place, "text": piece.text().rstrip("\r\n")}


class _LabelledRows:
    """Rows whose labels stand in files of their own among these, one a line: ``dev.jsonl`` and ``dev-labels.lst``."""

    def __init__(self, files: Sequence[Path]) -> None:
        beside = [file for file in files if file.suffix == _LABELS]
        self._rows = rows_of([file for file in files if file.suffix != _LABELS])
        self._labels = [int(line) for path in beside for line in path.read_text("utf-8").split()]
        if self._labels and len(self._labels) != len(self._rows):
            raise DataError(
                f"{beside[0].absolute()} has {len(self._labels)} labels, and there are {len(self._rows)} rows."
                " Give both files of one split, as they were published."
            )

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, index: int) -> Row:
        row = self._rows.row(index)
        return {**row, "label": self._labels[index]} if self._labels else row


def _labels_of(path: Path) -> Path:
    """Return the file beside a file of rows that has their labels, where there is one."""
    return path.with_name(f"{path.name.partition('.')[0]}-labels{_LABELS}")


def _arrays(files: list[Path]) -> Dataset:
    return JsonRows(files, key="value")


def _mmlu(files: list[Path]) -> Dataset:
    return DelimitedRows(files, delimiter=",", quote='"', header=("question", "A", "B", "C", "D", "answer"))


MULTIPLE_CHOICE = (
    PublishedSet(
        name="c3",
        summary="19,000 questions on Chinese texts and dialogues, multiple choice",
        source="https://dataset.org/c3",
        licence="for research",
        hub="dataset-org/c3",
        subset="mixed",
        items=items.c3,
        prompt="{context}\n\n{question}\n{choices}\n答案：",
        response="{letter}",
        many=True,
        read=lambda files: _arrays(files) if suffix_of(files[0]) in (".json", ".jsonl") else rows_of(files),
    ),
    PublishedSet(
        name="reclor",
        summary="6,100 questions of logical reasoning of law school tests, multiple choice",
        source="https://whyu.me/reclor",
        licence="for research",
        hub="metaeval/reclor",
        items=items.reclor,
        prompt=_LETTERED,
        response="{letter}",
    ),
    PublishedSet(
        name="logiqa",
        summary="8,700 questions of logical reasoning of civil service tests, multiple choice",
        source="https://github.com/lgw863/LogiQA-dataset",
        licence="for research",
        hub="lucasmccabe/logiqa",
        revision="refs/convert/parquet",
        items=items.logiqa,
        prompt=_LETTERED,
        response="{letter}",
        read=lambda files: _Blocks(files) if suffix_of(files[0]) == ".txt" else rows_of(files),
    ),
    PublishedSet(
        name="mmlu",
        summary="16,000 questions of 57 subjects, multiple choice",
        source="https://github.com/hendrycks/test",
        licence="MIT",
        hub="cais/mmlu",
        subset="all",
        split="auxiliary_train",
        items=items.mmlu,
        prompt="The following is a multiple choice question (with answers) about {subject}.\n\n{question}\n{choices}\nAnswer:",
        response="{letter}",
        read=lambda files: _mmlu(files) if suffix_of(files[0]) == ".csv" else rows_of(files),
    ),
    PublishedSet(
        name="mmlu-qlora",
        summary="questions of mmlu as whole prompts with zero or five shots, as QLoRA has them",
        source="https://github.com/artidoro/qlora",
        licence="MIT",
        hub="",
        items=items.mmlu_prompts,
        prompt="{input}",
        response="{letter}",
    ),
    PublishedSet(
        name="arc",
        summary="7,800 questions of science at school, easy and challenging, multiple choice",
        source="https://allenai.org/data/arc",
        licence="CC BY-SA 4.0",
        hub="allenai/ai2_arc",
        subset="ARC-Challenge",
        items=items.science,
        prompt="Question: {question}\n{choices}\nAnswer:",
        response="{letter}",
    ),
    PublishedSet(
        name="openbookqa",
        summary="6,000 questions of elementary science, multiple choice",
        source="https://allenai.org/data/open-book-qa",
        licence="Apache-2.0",
        hub="allenai/openbookqa",
        subset="main",
        items=items.science,
        prompt="{question}\n{choices}\nAnswer:",
        response="{letter}",
    ),
    PublishedSet(
        name="hellaswag",
        summary="70,000 beginnings with four ways to go on",
        source="https://github.com/rowanz/hellaswag",
        licence="MIT",
        hub="Rowan/hellaswag",
        items=items.hellaswag,
        prompt="{context}",
        response="{label}",
    ),
    PublishedSet(
        name="winogrande",
        summary="44,000 sentences with a gap and two words for it",
        source="https://winogrande.allenai.org",
        licence="CC BY",
        hub="allenai/winogrande",
        subset="winogrande_xl",
        items=items.winogrande,
        prompt="{sentence}\nWhat does the _ stand for?\n{choices}\nAnswer:",
        response="{letter}",
    ),
    PublishedSet(
        name="piqa",
        summary="18,000 questions of physical common sense with two answers",
        source="https://yonatanbisk.com/piqa",
        licence="AFL 3.0",
        hub="baber/piqa",
        items=items.piqa,
        prompt="{question}\n{choices}\nAnswer:",
        response="{letter}",
        read=_LabelledRows,
        beside=_labels_of,
    ),
    PublishedSet(
        name="boolq",
        summary="12,700 questions on a passage, answered by yes or no",
        source="https://github.com/google-research-datasets/boolean-questions",
        licence="CC BY-SA 3.0",
        hub="google/boolq",
        items=items.boolq,
        prompt="{context}\nQuestion: {question}?\nAnswer:",
        response="{label}",
    ),
    PublishedSet(
        name="ceval",
        summary="13,900 questions of 52 subjects in Chinese, multiple choice",
        source="https://cevalbenchmark.com",
        licence="CC BY-NC-SA 4.0",
        hub="ceval/ceval-exam",
        items=items.ceval,
        prompt="以下是中国关于{subject}的单项选择题，请选出其中的正确答案。\n\n{question}\n{choices}\n答案：",
        response="{letter}",
    ),
    PublishedSet(
        name="cmmlu",
        summary="11,500 questions of 67 subjects in Chinese, multiple choice",
        source="https://github.com/haonan-li/CMMLU",
        licence="CC BY-NC 4.0",
        hub="haonan-li/cmmlu",
        items=items.cmmlu,
        prompt="以下是关于{subject}的单项选择题，请直接给出正确答案的选项。\n\n{question}\n{choices}\n答案：",
        response="{letter}",
    ),
)


def truthfulqa(task: str) -> PublishedSet:
    """The set of a task of TruthfulQA: one right choice (mc1), or several (mc2)."""
    return PublishedSet(
        name="truthfulqa",
        summary="817 questions that many people answer wrongly",
        source="https://github.com/sylinrl/TruthfulQA",
        licence="Apache-2.0",
        hub="truthfulqa/truthful_qa",
        subset="multiple_choice",
        split="validation",
        items=partial(items.truthfulqa, task=task),
        prompt="{question}",
        response="{label}",
    )
