"""The section ``data`` of a run: which rows it takes, and how they become samples and batches of any dataset."""

from __future__ import annotations

import math
import re
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from mt_core.config.base import MtConfig
from mt_train.config.bounds import MOST_TOKENS
from mt_train.config.texts import TEMPLATES, template_source, text_or_file

Truncation = Literal["error", "drop", "left", "right", "middle", "split"]
Packing = Literal["best_fit", "sequential"]

PAD_MULTIPLE = 8
"""Kernels like rows of such a length, and few shapes occur."""


class DataConfig(MtConfig):
    """Options that hold for any dataset.

    ``None`` takes the objective's or the run's own default.
    """

    columns: dict[str, str] = Field({}, description="our field name → the name in the rows, e.g. {prompt: question}")
    media_root: str | None = Field(
        None,
        min_length=1,
        description="folder that images and other files of rows lie in; default is that of the rows' own files, and none outside is read",
    )
    media_patterns: dict[str, str] = Field(
        {},
        description="kind → regular expression: what it finds in texts of rows is media of that kind, by its group where it has one, e.g."
        " {dna: '<dna>([ACGTN]+)</dna>'}",
    )
    template: str | None = Field(
        None,
        description=f"how conversations are written down: {', '.join(TEMPLATES)}, or a Jinja file; "
        "default is plain for prompt and response, own (the tokenizer's) for anything else",
    )
    train_on: Literal["assistant", "last", "all"] = Field(
        "assistant", description="trained turns of a conversation: the assistant's, its last one, or everybody's"
    )
    system: str | None = Field(
        None, min_length=1, description="system message of conversations that have none: text, or {file: PATH}"
    )
    prefix: str = Field("", description="put before the text of each user turn (the prompt): text, or {file: PATH}")
    postfix: str = Field("", description="put after the text of each user turn (the prompt): text, or {file: PATH}")
    max_len: int | None = Field(
        None, gt=1, le=MOST_TOKENS, description="longest sample (tokens); default train.sequence_len"
    )
    max_source_len: int | None = Field(
        None, gt=0, le=MOST_TOKENS, description="longest prompt: what comes before the first trained token (tokens)"
    )
    max_target_len: int | None = Field(
        None, gt=0, le=MOST_TOKENS, description="longest trained part: from the first trained token on (tokens)"
    )
    truncation: Truncation | None = Field(
        None,
        description="what happens to a longer sample: an error, dropped, cut at the left, right or in the middle (begin and"
        " stop token stay), or split into pieces; default is the objective's",
    )
    batching: Literal["padding", "packing"] | None = Field(
        None, description="one sample a row, or several; default is the objective's"
    )
    packing: Packing = Field(
        "best_fit",
        description="how packed rows are filled: best_fit (longest samples first, each where it leaves the least room) or sequential"
        " (in their order; one that does not fit begins the next row)",
    )
    packing_features: int | None = Field(
        None,
        gt=0,
        le=MOST_TOKENS,
        description="most features that encoders make of the media of a packed row, all together; a sample with more has a row of its own",
    )
    pad_multiple: int = Field(
        PAD_MULTIPLE,
        gt=0,
        le=65_536,
        description="padded rows are as long as their longest, rounded up to this (tokens)",
    )
    eval: float | int | str | None = Field(
        0.05, description="held-out part: share (below 1), rows (1 or more), a path for dataset.path, or none"
    )
    group_by_length: bool = Field(
        False,
        description="padded rows of similar length come together, in windows of the order; fewer places are padded",
    )
    prove: bool = Field(
        False,
        description="before the first step change every second document of a batch and see that the others do not notice",
    )
    cache: str | None = Field(
        "auto",
        min_length=1,
        description="folder of encoded rows, or an address that has them (s3://bucket/tokens); auto is MT_CACHE or ~/.cache/mt/tokens for"
        " more than 50 MB of files; none is memory",
    )
    workers: int | None = Field(
        None, gt=0, le=1024, description="processes that encode rows into the cache; default is one for each processor"
    )
    shuffle: bool = Field(True, description="a new order each epoch, a function of seed and epoch only")
    shuffle_buffer: int = Field(
        1000, gt=0, le=10_000_000, description="rows of a stream that are shuffled and packed among themselves"
    )
    read_rows: int | None = Field(None, gt=0, description="only the first rows of a source; default all")
    on_bad_row: Literal["error", "skip"] = Field(
        "error", description="a row that cannot be used ends the run, or is passed over, counted and listed"
    )
    max_bad_rows: int = Field(100, gt=0, le=1_000_000, description="most rows that on_bad_row=skip may pass over")
    strict: bool = Field(False, description="warnings of the report of the rows become errors that end the run")

    @field_validator("columns", mode="before")
    @classmethod
    def _spaces(cls, value: Any) -> Any:
        if isinstance(value, dict) and (
            glued := [key for key, item in value.items() if item is None and ":" in str(key)]
        ):
            raise ValueError(f"{glued[0]!r} is read as one word; write a space after each colon: {{ours: theirs}}")
        return value

    @field_validator("media_patterns")
    @classmethod
    def _check_patterns(cls, value: dict[str, str]) -> dict[str, str]:
        for kind, pattern in value.items():
            try:
                groups = re.compile(pattern).groups
            except re.error as error:
                raise ValueError(f"{pattern!r}, for {kind}, is no regular expression: {error}; repair it") from error
            if groups > 1:
                raise ValueError(
                    f"{pattern!r}, for {kind}, has {groups} groups; keep one, around the content, and write the others (?:…)"
                )
        return value

    @field_validator("system", "prefix", "postfix", mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        return text_or_file(value)

    @field_validator("template")
    @classmethod
    def _check_known(cls, value: str | None) -> str | None:
        return None if value is None else template_source(value)

    @field_validator("eval", mode="before")
    @classmethod
    def _part(cls, value: Any) -> Any:
        """A number, also one that YAML reads as text (2e-2), or a path."""
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                if value.strip():
                    return value
        if value is None:
            return value
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"a share below 1, a number of rows, a path or none is needed, got {value!r}")
        if value <= 0:
            raise ValueError(f"a share or a number of rows is greater than 0, got {value!r}; none holds nothing out")
        if value > 1 and value != int(value):
            raise ValueError(f"{value!r} is neither a share below 1 nor a whole number of rows")
        return value

    @model_validator(mode="after")
    def _lengths_fit(self) -> Self:
        source, target = self.max_source_len, self.max_target_len
        if self.truncation == "split" and (source or target):
            name = "max_source_len" if source else "max_target_len"
            raise ValueError(
                f"{name} cuts a part of a sample, and truncation=split keeps all of it; set truncation to error, drop, left,"
                f" right or middle, or leave out {name}"
            )
        if self.max_len is not None and source is not None and source >= self.max_len:
            raise ValueError(
                f"max_source_len={source} leaves no room for an answer in max_len={self.max_len}; set max_source_len to"
                f" {self.max_len - 1} or less, or raise max_len and train.sequence_len"
            )
        if self.max_len is not None and target is not None and target > self.max_len:
            raise ValueError(
                f"max_target_len={target} can never be reached in max_len={self.max_len}; set max_target_len to"
                f" {self.max_len} or less, or leave it out"
            )
        return self
