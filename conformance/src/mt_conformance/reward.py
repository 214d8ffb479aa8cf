"""Conformance of a reward: a score for whatever a model writes, the same each time, whoever stands beside it."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mt_conformance.base import BasePluginConformance
from mt_conformance.tokenizer import NASTY
from mt_core import Message
from mt_core.plugins.host import PluginHost


@dataclass(frozen=True)
class Answer:
    """An answer as the kit makes it: that of mt-plugin-alignment, which the kit does not import."""

    text: str
    ids: Sequence[int]
    finish: str
    row: Mapping[str, Any]
    group: int
    prompt: Sequence[Message] = ()
    prompt_ids: Sequence[int] = ()
    turns: Sequence[Message] = ()


class Reward(Protocol):
    """A reward as the kit calls it."""

    def score(self, answers: Sequence[Answer]) -> Sequence[float | None]:
        """Return a score for each answer."""
        ...


CALLING: tuple[Message, ...] = (
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call00001", "type": "function", "function": {"name": "look_up", "arguments": {"n": 1}}}],
    },
    {"role": "tool", "name": "look_up", "tool_call_id": "call00001", "content": "12"},
)
"""Turns before the last one of an answer that called a tool."""
TEXTS = ("the sea", "The Sea.", "an old man, who was 12 years old", "", " ", "12", "no " * 200, *NASTY)


class BaseRewardConformance(BasePluginConformance):
    """Scores of answers."""

    kind = "reward"
    row: Mapping[str, Any] = {"id": "rows.jsonl:1", "prompt": "What is wide?", "answer": "the sea"}
    """The row of the prompt; a reward that reads other fields names its own."""
    texts: Sequence[str] = ()
    """Answers that it tells apart, where it gives all of the kit's one score."""
    other_row: Mapping[str, Any] = {}
    """Another row, which some of the answers belong to; by default ``row`` with another ``answer``, where it has one."""
    tolerance: float = 0.0
    """By how much a score may differ where an answer is scored beside others: a model that reads several at once rounds otherwise."""

    def reward(self, host: PluginHost, folder: Path) -> Reward:
        """Build the reward as an objective does."""
        built: Reward = self.part(host, folder).build()
        return built

    def answers(self) -> list[Answer]:
        """Answers of every kind: right, wrong, empty, cut, odd; some called a tool before."""
        rows = [self.row, dict(self.other_row) or {**self.row, **({"answer": "12"} if "answer" in self.row else {})}]
        asked = self.row.get("prompt", "")
        prompt = list(asked) if isinstance(asked, list) else [{"role": "user", "content": str(asked), "raw": True}]
        return [
            Answer(
                text=text,
                ids=[1] * (len(text) + 1),
                finish="length" if number % 3 == 2 else "eos",
                row=dict(rows[number >= len(self.texts) + len(TEXTS)]),
                group=number // 2,
                prompt=copy.deepcopy(prompt),
                prompt_ids=[1] * max(1, len(str(asked))),
                turns=[*copy.deepcopy(CALLING), {"role": "assistant", "content": text}] if number % 7 == 3 else (),
            )
            for number, text in enumerate([*self.texts, *TEXTS, *self.texts, *TEXTS])
        ]

    def scores(self, reward: Reward, answers: Sequence[Answer]) -> list[float | None]:
        """Score answers. Raises ``AssertionError`` for whatever is raised, and for what are no scores."""
        said = f"{len(answers)} answers, the first {answers[0].text[:60]!r}" if answers else "no answers"
        try:
            found = list(reward.score(answers))
        except Exception as error:
            raise AssertionError(
                f"{said}: score() raised {type(error).__name__}: {error}. A model writes anything: give a number, or None"
            ) from error
        assert len(found) == len(answers), f"{said}: score() gives {len(found)} scores; give one for each"
        for answer, score in zip(answers, found, strict=True):
            is_score = score is None or (
                isinstance(score, int | float) and not isinstance(score, bool) and math.isfinite(score)
            )
            assert is_score, (
                f"the score of {answer.text[:60]!r} is {score!r}; give a finite number, or None where there is none"
            )
        return found

    def test_whatever_a_model_writes_has_a_score_or_none(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Give a finite number or ``None`` for each, for no answers as for many, and a number as ``weight``, where there is one."""
        reward = self.reward(mt_host, tmp_path)
        assert self.scores(reward, []) == []
        self.scores(reward, self.answers())
        weight = getattr(reward, "weight", 1.0)
        assert isinstance(weight, int | float) and math.isfinite(weight), (  # noqa: PT018
            f"its weight is {weight!r}; it is a number, what the reward counts in the sum"
        )

    def test_an_answer_scores_the_same_alone_and_again(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """The score does not depend on other answers or their order, and is the same in a second call."""
        reward, answers = self.reward(mt_host, tmp_path), self.answers()
        together = self.scores(reward, answers)
        assert self.scores(reward, answers) == together, (
            "the second call gives other scores; keep no state, draw nothing"
        )
        alone = [self.scores(reward, [each])[0] for each in answers]
        self.require_same(answers, together, alone, "alone")
        turned = self.scores(reward, answers[::-1])[::-1]
        self.require_same(answers, together, turned, "in another order")
        assert len(set(together)) > 1 or together[0] is None, (
            f"all {len(answers)} answers have the score {together[0]!r}, so no check can tell them apart; set `texts`"
            " of the test to some that"
            " have other scores"
        )

    def require_same(
        self, answers: Sequence[Answer], scores: Sequence[float | None], others: Sequence[float | None], where: str
    ) -> None:
        """Raise ``AssertionError`` for scores that differ by more than ``tolerance``, or are there and are not."""
        for answer, one, other in zip(answers, scores, others, strict=True):
            is_same = one is other if one is None or other is None else abs(one - other) <= self.tolerance
            assert is_same, (
                f"{where} the score of {answer.text[:60]!r} is another ({other!r}, was {one!r}); score each answer by itself"
            )

    def test_scoring_changes_no_answer(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Answers and rows are unchanged, since all answers and rewards share them."""
        reward, answers = self.reward(mt_host, tmp_path), self.answers()
        before = copy.deepcopy(answers)
        self.scores(reward, answers)
        assert answers == before, "score() changed an answer or its row; copy what you change"
