"""Rewards that look at the text: a pattern, the answer of the row, how long it is."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from mt_core import DataError, conversation, notice

from .base import Answer, RewardOptions


def _compile(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"{value!r} is no regular expression: {error}") from error
    return value


def _require_text(value: object) -> object:
    """Refuse what YAML has read as something else than text, as it does with [0-9]."""
    if isinstance(value, str):
        return value
    raise ValueError(
        f"a regular expression is text, got {value!r}, as YAML reads what is not quoted; put quotes inside those of the shell: '\"[0-9]\"'"
    )


Expression = Annotated[str, BeforeValidator(_require_text), AfterValidator(_compile)]


class PatternConfig(RewardOptions):
    """Pattern, and how it is looked for."""

    pattern: Expression = Field(description="regular expression of Python; 1 for an answer that has it, else 0")
    whole: bool = Field(False, description="the whole answer has to match")
    count: bool = Field(False, description="share of the answer's characters that matches cover, instead of 1 or 0")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.whole and self.count:
            raise ValueError("whole and count say two things; leave one out")
        return self


class Pattern:
    """A regular expression."""

    def __init__(self, config: PatternConfig) -> None:
        self.weight = config.weight
        self._pattern, self._config = re.compile(config.pattern, re.DOTALL), config

    def score(self, answers: Sequence[Answer]) -> list[float | None]:
        """See ``Reward``."""
        return [self._score(each.text) for each in answers]

    def _score(self, text: str) -> float:
        if self._config.count:
            return sum(len(found.group()) for found in self._pattern.finditer(text)) / max(len(text), 1)
        return float(bool(self._pattern.fullmatch(text) if self._config.whole else self._pattern.search(text)))


class ExactConfig(RewardOptions):
    """Field of the right answer, and its comparison."""

    field: str = Field("answer", description="field of the row with the right answer, or a list of right ones")
    pattern: Expression | None = Field(
        None, description="regular expression whose first group (or whole match) is the answer; its last match counts"
    )
    ignore: Literal["nothing", "space", "case"] = Field(
        "space", description="nothing; space at both ends; or that and capital letters"
    )
    compare: Literal["text", "number"] = Field(
        "text",
        description="the text; or the number of both, the first behind ####, else the last, as 1,000 and 1000.0 are one: for sums like"
        " those of GSM8K",
    )


_NUMBER = re.compile(r"((?<!\w)[-\u2212])?\$?((?<!\w)[-\u2212])?((?:[0-9][0-9,]*)?\.[0-9]+|[0-9][0-9,]*)")
"""A minus behind a word or digit is a hyphen or a difference: ``9-2`` ends with 2. As the metric ``number`` of mt-plugin-evals has it."""
_MARK = "####"


def read_number(text: str) -> Decimal | None:
    """Return the first number after ``####``, else the last one of the text; ``None`` where there is none."""
    _, marked, behind = text.partition(_MARK)
    if marked and (first := _NUMBER.search(behind)):
        return _decimal(first)
    found = deque(_NUMBER.finditer(text), maxlen=1)
    return _decimal(found[0]) if found else None


def _decimal(found: re.Match[str]) -> Decimal:
    value = Decimal(found[3].replace(",", ""))
    return -value if found[1] or found[2] else value


def _written_out(wanted: object) -> str:
    """Return the field of a row as text; a number in full, since ``1e-05`` would be read as 5."""
    is_number = isinstance(wanted, float) and math.isfinite(wanted)
    return f"{Decimal(str(wanted)):f}" if is_number else str(wanted)


_QUESTION = ("prompt", "choices", "answer")
"""Fields of a row of multiple choice."""


def _right_answer(row: Mapping[str, Any], field: str) -> Any:
    """Return a field of a row; beside ``choices`` the ``answer`` is a number or a letter, and what is asked for is what ``sft`` writes."""
    wanted = row.get(field)
    if field != "answer" or any(row.get(name) is None for name in _QUESTION):
        return wanted
    try:  # without fields that have an answer of another form beside it
        return conversation({name: row[name] for name in ("id", *_QUESTION) if name in row})[-1]["content"]
    except DataError:  # choices of the user's own, which ask for something else
        return wanted


class Exact:
    """1 for the answer of the row, or one of its list, 0 for another; none where the row has no answer."""

    def __init__(self, config: ExactConfig) -> None:
        self._config, self.weight, self._has_told = config, config.weight, False
        self._pattern = None if config.pattern is None else re.compile(config.pattern, re.DOTALL)

    def score(self, answers: Sequence[Answer]) -> list[float | None]:
        """See ``Reward``. Says once where no row has the field."""
        field = self._config.field
        if answers and not self._has_told and all(each.row.get(field) is None for each in answers):
            self._has_told = True
            found = ", ".join(repr(name) for name in answers[0].row if name != "id")
            notice(
                f"reward exact: no row of these {len(answers)} answers has a field {field!r}, so none is scored; fields found: {found}."
                " Name the right one: --rewards.exact.field NAME"
            )
        return [self._score(each) for each in answers]

    def _score(self, answer: Answer) -> float | None:
        wanted = _right_answer(answer.row, self._config.field)
        listed = wanted if isinstance(wanted, list) else [] if wanted is None else [wanted]
        found = self._found(answer.text)
        if self._config.compare == "number":
            numbers = {number for each in listed if (number := read_number(_written_out(each))) is not None}
            return float(read_number(found) in numbers) if numbers else None
        return float(self._plain(found) in {self._plain(str(each)) for each in listed}) if listed else None

    def _found(self, text: str) -> str:
        """Return what is compared; nothing where the pattern does not match, or its last match leaves the group out."""
        if self._pattern is None:
            return text
        matches = list(self._pattern.finditer(text))
        return (matches[-1].group(min(1, self._pattern.groups)) or "") if matches else ""

    def _plain(self, text: str) -> str:
        stripped = text if self._config.ignore == "nothing" else text.strip()
        return stripped.casefold() if self._config.ignore == "case" else stripped


class LengthConfig(RewardOptions):
    """From when on an answer is too long."""

    most: int = Field(gt=0, description="tokens that an answer may have without a loss")
    ramp: int = Field(gt=0, description="tokens beyond most over which the score falls from 0 to -1")


class Length:
    """0 up to a length, then falling to -1: the overlong penalty of DAPO (https://arxiv.org/abs/2503.14476, equation 13)."""

    def __init__(self, config: LengthConfig) -> None:
        self._config, self.weight = config, config.weight

    def score(self, answers: Sequence[Answer]) -> list[float | None]:
        """See ``Reward``."""
        most, ramp = self._config.most, self._config.ramp
        return [-min(1.0, max(0, len(each.ids) - most) / ramp) for each in answers]
