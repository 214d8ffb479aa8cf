"""``rollouts.jsonl``: what a model that learns from its own answers has written to a few prompts, over time.

The file may be as large as the run was long: it is read once, line by line, and what is kept does not grow with it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mt_tools.report.curves import to_number
from mt_tools.report.files import lines_of
from mt_tools.report.predictions import shorten

MAX_PROMPTS = 4
"""Prompts that the page shows: those that came in most iterations, of these the first."""
MAX_MOMENTS = 8
"""Iterations of a prompt that the page shows: the first, the last, and some between them."""
CANDIDATES = 64
"""Prompts that are followed: a prompt that comes often has come early."""
MAX_BEGIN, MAX_END = 400, 200
"""Letters of one text that the page shows: what an answer comes to stands at its end."""
_HEAD = re.compile(r'\{"step": \d+, "iteration": (\d+), "row_id": ("(?:[^"\\]|\\.)*")')
"""Beginning of a line as mt-train writes it; what begins otherwise is read whole."""


@dataclass(frozen=True)
class Answer:
    """One answer. ``reward`` is the weighted sum of ``rewards``, ``None`` where it cannot be scored."""

    text: str
    reward: float | None
    rewards: Mapping[str, float | None]
    is_cut: bool


@dataclass
class Moment:
    """The answers to a prompt in one iteration, of which the best and the worst are kept."""

    iteration: int
    step: int
    row_id: str
    prompt: str
    best: Answer
    worst: Answer
    count: int = 1
    scored: int = 0
    total: float = 0.0

    @property
    def mean(self) -> float | None:
        """Return the mean reward of the answers that have one."""
        return self.total / self.scored if self.scored else None

    def add(self, answer: Answer) -> None:
        """Take in another answer; one without a reward stands only where none has one."""
        self.count += 1
        if answer.reward is None:
            return
        if self.best.reward is None or answer.reward > self.best.reward:
            self.best = answer
        if self.worst.reward is None or answer.reward < self.worst.reward:
            self.worst = answer
        self._count(answer)

    def _count(self, answer: Answer) -> None:
        if answer.reward is not None:
            self.scored, self.total = self.scored + 1, self.total + answer.reward

    @classmethod
    def of(cls, content: Mapping[str, Any], answer: Answer) -> Moment:
        """Begin with the first answer of an iteration."""
        text = content.get("prompt_text")
        prompt = shorten_middle(text) if isinstance(text, str) else ""
        moment = cls(
            int(content["iteration"]), int(content["step"]), shorten(content["row_id"]), prompt, answer, answer
        )
        moment._count(answer)
        return moment


@dataclass
class History:
    """Moments in their order, thinned while they come: every one, then every second, every fourth …, and always the last."""

    seen: int = 0
    _stride: int = 1
    _kept: dict[int, Moment] = field(default_factory=dict)
    _last: Moment | None = None

    def add(self, content: Mapping[str, Any], answer: Answer) -> None:
        """Take in an answer: of the iteration that is under way, or the first of the next."""
        if self._last is not None and self._last.iteration == content["iteration"]:
            self._last.add(answer)
            return
        self._last = Moment.of(content, answer)
        if self.seen % self._stride == 0:
            self._kept[self.seen] = self._last
        self.seen += 1
        if len(self._kept) > 4 * MAX_MOMENTS:
            self._stride *= 2
            self._kept = {number: moment for number, moment in self._kept.items() if number % self._stride == 0}

    def moments(self) -> list[Moment]:
        """Return the first, the last, and some between them, about as far from each other: ``MAX_MOMENTS`` at most."""
        if self._last is None:
            return []
        kept = self._kept | {self.seen - 1: self._last}
        wanted = [place * (self.seen - 1) / (MAX_MOMENTS - 1) for place in range(MAX_MOMENTS)]
        nearest = dict.fromkeys(min(kept, key=lambda number: abs(number - place)) for place in wanted)
        return [kept[number] for number in nearest]


@dataclass
class Rollouts:
    """Answers to some prompts over time. ``firsts`` are the first prompts of iterations, for a run in which none came twice."""

    by_row: dict[str, History] = field(default_factory=dict)
    firsts: History = field(default_factory=History)
    newest: int | None = None
    first_row: str = ""
    unread: int = 0

    def histories(self) -> list[tuple[str, list[Moment]]]:
        """Return the prompts that the page shows, each with its moments."""
        chosen = sorted(self.by_row.items(), key=lambda each: -each[1].seen)[:MAX_PROMPTS]
        return [(row_id, history.moments()) for row_id, history in chosen]

    @property
    def repeats(self) -> bool:
        """Return whether some prompt came in more than one iteration."""
        return any(history.seen > 1 for history in self.by_row.values())

    def add(self, line: str) -> None:
        """Take in the next line of the file."""
        if not _is_passed_over(self, line):
            _add(self, line)

    def remarks(self) -> Iterator[str]:
        """Yield what a reader of the page has to know about the answers."""
        if self.unread:
            yield f"{self.unread:,} line(s) of rollouts.jsonl are no answer and were left out"


def read_rollouts(path: Path) -> Rollouts:
    """Read a file; one that is missing is empty."""
    found = Rollouts()
    for line in lines_of(path):
        found.add(line)
    return found


def _is_passed_over(found: Rollouts, line: str) -> bool:
    """Return whether a line is of a prompt that nobody follows, as most are; it is not worth being read."""
    head = _HEAD.match(line)
    if head is None or len(found.by_row) < CANDIDATES:
        return False
    try:
        if int(head[1]) != found.newest:
            return False
        row_id = json.loads(head[2])
    except ValueError:
        return False  # damaged, which whoever reads it counts
    return row_id not in found.by_row and row_id != found.first_row


def _add(found: Rollouts, line: str) -> None:
    try:
        content = json.loads(line)
        row_id, iteration = str(content["row_id"]), content["iteration"]
        if type(iteration) is not int or type(content["step"]) is not int:
            raise TypeError("an iteration and a step are whole numbers")
        answer = _answer(content)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        found.unread += 1
        return
    if iteration != found.newest:
        found.newest, found.first_row = iteration, row_id
    if row_id == found.first_row:
        found.firsts.add(content, answer)
    if row_id in found.by_row or len(found.by_row) < CANDIDATES:
        found.by_row.setdefault(row_id, History()).add(content, answer)


def _answer(content: Mapping[str, Any]) -> Answer:
    rewards = {shorten(name): _score(value) for name, value in (content.get("rewards") or {}).items()}
    total = _score(content.get("reward"))
    if "reward" not in content and len(rewards) == 1:
        (total,) = rewards.values()
    return Answer(shorten_middle(_text(content)), total, rewards, content.get("finish") in ("length", "context"))


def _text(content: Mapping[str, Any]) -> Any:
    """Return the text of an answer; of one that called tools all turns, each call as JSON and what it gave behind an arrow."""
    if not content.get("turns"):
        return content["text"]
    lines = []
    for turn in content["turns"]:
        said = turn.get("content")
        lines += [f"→ {said}" if turn["role"] == "tool" else str(said)] if said else []
        lines += [json.dumps(call["function"], ensure_ascii=False) for call in turn.get("tool_calls") or ()]
    return "\n".join(lines)


def _score(value: Any) -> float | None:
    number = to_number(value)
    return number if number is not None and math.isfinite(number) else None


def shorten_middle(text: object) -> str:
    """Return a text without what is neither near its beginning nor near its end."""
    whole = "" if text is None else str(text)
    left = len(whole) - MAX_BEGIN - MAX_END
    return whole if left <= 0 else f"{whole[:MAX_BEGIN]} … ({left:,} more letters) … {whole[-MAX_END:]}"
