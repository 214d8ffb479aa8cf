from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


class Just:
    """A reward without a fault: letters of an answer."""

    weight: Any = 1.0

    def __init__(self, config: Any) -> None:
        self.calls = 0

    def score(self, answers: Sequence[Any]) -> list[float | None]:
        return [float(sum(map(str.isalpha, each.text))) for each in answers]


class Fragile(Just):
    """Reads the first word, where an answer may have none."""

    def score(self, answers: Sequence[Any]) -> list[float | None]:
        return [float(len(each.text.split()[0])) for each in answers]


class Lossy(Just):
    """Leaves out what it does not understand."""

    def score(self, answers: Sequence[Any]) -> list[float | None]:
        return [1.0 for each in answers if each.text]


class Boundless(Just):
    def score(self, answers: Sequence[Any]) -> list[float | None]:
        return [math.inf if not each.text else 1.0 for each in answers]


class Unweighed(Just):
    weight = "much"


class Tiring(Just):
    """Thinks less of everything that it sees again."""

    def score(self, answers: Sequence[Any]) -> list[float | None]:
        self.calls += bool(answers)
        return [1.0 / max(self.calls, 1) for _ in answers]


class Ranking(Just):
    """Scores an answer by its place among the others."""

    def score(self, answers: Sequence[Any]) -> list[float | None]:
        order = sorted({len(each.text) for each in answers})
        return [float(order.index(len(each.text))) for each in answers]


class Queueing(Just):
    """Believes that prompts come in their order."""

    def score(self, answers: Sequence[Any]) -> list[float | None]:
        return [float(each.group >= answers[0].group) for each in answers]


class Writing(Just):
    """Notes its scores in the row."""

    def score(self, answers: Sequence[Any]) -> list[float | None]:
        for each in answers:
            each.row["score"] = 1.0
        return super().score(answers)


class Alike(Just):
    """Scores everything alike, so that a check of it sees nothing."""

    def score(self, answers: Sequence[Any]) -> list[float | None]:
        return [1.0 for _ in answers]


class FirstRow(Just):
    """Compares with the row of the first answer."""

    def score(self, answers: Sequence[Any]) -> list[float | None]:
        return [float(each.text == answers[0].row["answer"]) for each in answers]
