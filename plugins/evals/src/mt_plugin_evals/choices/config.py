"""Options of evaluations with choices, and what they are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from mt_core import PartChoice
from mt_core.evaluation import EvaluationConfig

from ..naming import named_dataset
from .forms import FORMS

_JSON = (".json", ".jsonl")


class ChoiceConfig(EvaluationConfig):
    """Options that all of them have."""

    shots: int = Field(
        0, ge=0, le=100, description="questions with their answers before each question, of its own subject"
    )
    shot_order: Literal["file", "random"] = Field(
        "file", description="the first ones of the file, or drawn for each question from (seed, file and line)"
    )
    seed: int = Field(0, ge=0, description="seed of random shots")
    limit: int | None = Field(None, ge=1, description="questions of each subject, the first ones; without it all")
    too_long: Literal["error", "skip"] = Field(
        "error",
        description="what a question is that is longer than the context without any shot; skipped ones are counted",
    )
    unconditional: str | None = Field(
        None,
        min_length=0,
        description="a text, often 'Answer:', after which choices are scored by themselves too: gives accuracy_pmi",
    )


class SetConfig(ChoiceConfig):
    """Options of a set by name."""

    path: str = Field(min_length=1, description="file, folder or pattern of the set's own files, a split with answers")
    shots_path: str | None = Field(
        None,
        min_length=1,
        description="another split, which shots are taken from; without it from path, never the question",
    )

    def choices_of(self, name: str, options: Mapping[str, Any] | None = None) -> dict[str, PartChoice]:
        """Return the datasets: the rows, and those for shots where there are any."""
        paths = {"path": self.path} | ({"shots_path": self.shots_path} if self.shots and self.shots_path else {})
        return {
            key: PartChoice(name=name, options={**(options or {}), "path": path}, kind="dataset")
            for key, path in paths.items()
        }


class TruthfulConfig(SetConfig):
    """Options of TruthfulQA."""

    task: Literal["mc1", "mc2"] = Field("mc1", description="one right choice, or several: then mass is its figure")


class MmluConfig(ChoiceConfig):
    """Options of MMLU."""

    path: str = Field(
        min_length=1, description="folder with dev/ and test/ (or val/) of the original, or a JSON file of QLoRA"
    )
    split: Literal["test", "val"] = Field("test", description="folder within path that questions come from")
    subjects: tuple[str, ...] = Field((), min_length=0, description="subjects, as files are named; without them all")
    prompt: Literal["harness", "original"] = Field(
        "harness",
        description="words of lm-evaluation-harness, or of the original code, with two spaces before the subject",
    )

    @property
    def whole_prompts(self) -> bool:
        """Return whether the rows are QLoRA's, which are whole prompts."""
        return self.path.endswith(_JSON)

    @model_validator(mode="after")
    def _whole_prompts_have_their_shots(self) -> Self:
        if self.whole_prompts and (self.shots or self.prompt != "harness" or self.split != "test"):
            raise ValueError(
                f"{self.path} is a file of QLoRA, whose prompts are written out with their shots; leave shots, prompt and split out,"
                " or give the original folder"
            )
        return self

    def choices_of(self) -> dict[str, PartChoice]:
        """Return the datasets: the questions, and the five of each subject that shots are taken from."""
        if self.whole_prompts:
            return {"path": PartChoice(name="mmlu-qlora", options={"path": self.path}, kind="dataset")}
        folders = [self.split, *(["dev"] if self.shots else [])]
        return {
            name: PartChoice(name="mmlu", options={"path": f"{self.path.rstrip('/')}/{name}"}, kind="dataset")
            for name in folders
        }


class MultipleChoiceConfig(ChoiceConfig):
    """Options for rows of any dataset."""

    rows: dict[str, Any] = Field(
        description="dataset of the questions: {name, options …}; its rows have prompt, choices, answer, and perhaps group"
    )
    shot_rows: dict[str, Any] | None = Field(
        None, description="dataset that shots are taken from; without it rows, never the question"
    )
    form: str | None = Field(
        None,
        min_length=1,
        description=f"words of a set: {', '.join(FORMS)}; without it those of the dataset's name, or of the rows",
    )
    prompt: str | None = Field(
        None, min_length=1, description="the question: {fields} of a row, {choices} as lines with letters"
    )
    target: str | None = Field(
        None, min_length=1, description="what is scored behind the prompt: {choice}, {letter} or {fields}"
    )
    description: str | None = Field(None, min_length=0, description="text before shots and question, with {fields}")
    delimiter: str | None = Field(None, min_length=0, description="text between prompt and target; a space")
    unanswered: Literal["error", "skip"] = Field(
        "error", description="what a row without an answer is; skipped ones are counted"
    )
    choices: int | None = Field(None, ge=2, le=26, description="choices that every question must have")

    @model_validator(mode="after")
    def _datasets_are_named(self) -> Self:
        for key, given in (("rows", self.rows), ("shot_rows", self.shot_rows)):
            if given is not None:
                named_dataset(given, key.replace("_", "-"))
        if self.form is not None and self.form not in FORMS:
            raise ValueError(f"form is {self.form!r}; there are {', '.join(FORMS)}. Or write prompt and target")
        return self

    def choices_of(self) -> dict[str, PartChoice]:
        """Return the datasets."""
        given = {"rows": self.rows, **({"shot_rows": self.shot_rows} if self.shots and self.shot_rows else {})}
        return {key: PartChoice.of(each, kind="dataset") for key, each in given.items()}
