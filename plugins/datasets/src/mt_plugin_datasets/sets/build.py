"""Building of a set's rows from its options: from files, or from the Hub."""

from __future__ import annotations

from collections.abc import Callable
from glob import has_magic
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from mt_core import DataError, Dataset, MtConfig
from mt_core.files import FileConfig, files_of, is_remote, suffix_of

from ..formats import READERS, rows_of
from ..hub import HubConfig, hub_files, hub_rows
from .glue import TASKS, glue
from .multiple_choice import truthfulqa
from .published import PublishedSet, SetRows
from .table import SETS

_OF_FILES = ("eval_path", "sha256", "sha1")
_OF_HUB = ("subset", "split", "eval_split", "revision")


class SetConfig(MtConfig):
    """Place of the set, and what the prompt says."""

    path: str | None = Field(
        None,
        min_length=1,
        description="file, folder or pattern of the set's own files; without it the set comes from the Hub",
    )
    eval_path: str | None = Field(None, min_length=1, description="rows for evaluation, from another path")
    sha256: str | None = Field(
        None, min_length=64, max_length=64, description="SHA-256 that the file of path must have"
    )
    sha1: str | None = Field(
        None,
        min_length=40,
        max_length=40,
        description="SHA-1 that the file of path must have, if only this is published",
    )
    subset: str | None = Field(None, min_length=1, description="configuration on the Hub; without it the set's own")
    split: str | None = Field(None, min_length=1, description="split on the Hub to train on; without it the set's own")
    eval_split: str | None = Field(None, min_length=1, description="split on the Hub to evaluate on")
    revision: str | None = Field(None, min_length=1, description="commit, branch or tag on the Hub")
    prompt: str | None = Field(None, min_length=1, description="another prompt, with the {fields} of the set's own")

    @model_validator(mode="after")
    def _files_or_hub(self) -> Self:
        wrong = [key for key in (_OF_FILES if self.path is None else _OF_HUB) if getattr(self, key) is not None]
        if wrong:
            where = "files; set path" if self.path is None else "the Hub; leave path out"
            raise ValueError(f"{wrong[0]} belongs to {where}, or leave {wrong[0]} out")
        return self


class GlueConfig(SetConfig):
    """Place and prompt for one task of the benchmark."""

    task: Literal["cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte", "wnli"] = Field(
        "sst2", description="which of the tasks"
    )

    @model_validator(mode="after")
    def _subset_is_task(self) -> Self:
        if self.subset is not None:
            raise ValueError("subset of glue is its task; set task")
        return self


assert set(TASKS) == set(GlueConfig.model_fields["task"].annotation.__args__), "the tasks of the table"  # type: ignore[union-attr]


class TruthfulConfig(SetConfig):
    """Place, prompt and task."""

    task: Literal["mc1", "mc2"] = Field("mc1", description="one right choice for each question, or several")


def set_files(config: SetConfig, split: Literal["train", "eval"], *, name: str) -> list[Path] | None:
    """The files of a set by name."""
    return _files(config, split, SETS[name])


def glue_files(config: GlueConfig, split: Literal["train", "eval"]) -> list[Path] | None:
    """The files of a task of GLUE."""
    return _files(config, split, glue(config.task))


def build_set(config: SetConfig, *, split: Literal["train", "eval"], name: str) -> SetRows | None:
    """The rows of a set by name."""
    return _build(config, split, SETS[name])


def build_glue(config: GlueConfig, *, split: Literal["train", "eval"]) -> SetRows | None:
    """The rows of a task of GLUE."""
    return _build(config, split, glue(config.task))


def truthful_files(config: TruthfulConfig, split: Literal["train", "eval"]) -> list[Path] | None:
    """The files of TruthfulQA."""
    return _files(config, split, truthfulqa(config.task))


def build_truthful(config: TruthfulConfig, *, split: Literal["train", "eval"]) -> SetRows | None:
    """The rows of a task of TruthfulQA."""
    return _build(config, split, truthfulqa(config.task))


def _build(config: SetConfig, split: Literal["train", "eval"], published: PublishedSet) -> SetRows | None:
    if config.prompt is not None and not published.prompt:
        raise DataError(f"{published.name} has dialogues, whose prompts are their own. Leave dataset.prompt out.")
    rows = hub_rows(_on_hub(config, published), split=split) if config.path is None else _rows(config, split, published)
    return None if rows is None else SetRows(rows, published, config.prompt)


def _files(config: SetConfig, split: Literal["train", "eval"], published: PublishedSet) -> list[Path] | None:
    if config.path is None:
        return hub_files(_on_hub(config, published), split)
    given = FileConfig(path=config.path, eval_path=config.eval_path, sha256=config.sha256, sha1=config.sha1)
    files = given.files(split, *READERS, ".txt")
    if files is None or published.beside is None:
        return files
    place = given.path if split == "train" else given.eval_path
    if place is None or not is_remote(place):
        return [*files, *filter(Path.is_file, map(published.beside, files))]
    return [*files, *_fetched_beside(place, files, published.beside)]


def _fetched_beside(address: str, files: list[Path], beside: Callable[[Path], Path]) -> list[Path]:
    """Return the files that fetched ones are read with, in their order, where the address has them.

    Copies stand below a folder of their own for each folder of the address, under their names behind the version of the file.
    """

    def named(copy: Path) -> Path:
        return copy.with_name(copy.name.partition("-")[2])

    wanted = [beside(named(file)) for file in files]
    is_file = suffix_of(Path(address)) in READERS and not has_magic(address)
    folder = address.rpartition("/")[0] if is_file or has_magic(address) else address.rstrip("/")
    ending = wanted[0].name if is_file else f"**/*{wanted[0].suffix}"
    try:
        found = {named(copy): copy for copy in files_of(f"{folder}/{ending}")}
    except DataError:  # it has none
        return []
    return [found[place] for place in wanted if place in found]


def _rows(config: SetConfig, split: Literal["train", "eval"], published: PublishedSet) -> Dataset | None:
    files = _files(config, split, published)
    return None if files is None else (published.read or rows_of)(files)


def _on_hub(config: SetConfig, published: PublishedSet) -> HubConfig:
    if not published.hub:
        raise DataError(f"{published.name} is not on the Hub. Set dataset.path to its files ({published.source}).")
    return HubConfig(
        path=published.hub,
        subset=config.subset or published.subset,
        split=config.split or published.split,
        eval_split=config.eval_split,
        revision=config.revision or published.revision,
        data_files=published.data_files,
    )
