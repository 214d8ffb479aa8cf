"""Letter after ``Answer:`` in an answer that may think aloud, as simple-evals reads it (https://github.com/openai/simple-evals)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pydantic import Field

from mt_core import DataError, MtConfig, Row

from .totals import Scores, means


class ChoiceLetterConfig(MtConfig):
    """Letters of the choices."""

    letters: str = Field("ABCD", pattern="^[A-Z]{2,26}$", description="letters that choices may have")


class ChoiceLetter:
    """Tells whether the first ``Answer: X`` names the right letter; ``unread`` where there is none; see ``Metric``."""

    def __init__(self, config: ChoiceLetterConfig) -> None:
        self._letters = config.letters
        pattern = rf"(?i)Answer[ \t]*:[ \t]*\$?([{config.letters}])\$?"
        self._pattern = re.compile(pattern)
        self.signature = f"simple-evals common.py, {pattern}"

    def score(self, prediction: str, references: Sequence[str], row: Row) -> Mapping[str, float]:
        """See ``Metric``. Raises ``DataError`` for a reference that is no letter."""
        wanted = {self._wanted_letter(reference, row) for reference in references}
        found = self._pattern.search(prediction)
        said = "" if found is None else found[1].upper()
        return {"accuracy": float(said in wanted), "unread": float(not said)}

    def _wanted_letter(self, reference: str, row: Row) -> str:
        text = reference.strip()
        found = self._pattern.search(text)
        letter = found[1].upper() if found else text.strip("().")
        if len(letter) != 1 or letter not in self._letters:
            raise DataError(
                f"{row['id']}: the reference {reference[:80]!r} is no letter of {self._letters}; write the letter alone"
            )
        return letter

    def total(self, scores: Scores) -> Mapping[str, float]:
        """See ``Metric``."""
        return means(scores)
