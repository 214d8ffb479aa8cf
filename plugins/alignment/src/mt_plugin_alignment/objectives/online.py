"""Base of objectives that learn from some of the model's own answers: writing, scoring and describing them.

Shapes: A answers of an iteration, G answers to one prompt; NaN stands for an answer without a score.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mt_core import Encoded, Row, Sample
from mt_core.generation import Generation, GenerationConfig, SamplingRules
from mt_core.nn import TokenObjective

from ..reward_functions.base import Answer
from ..scores import score_answers
from .grpo import CUT, total_of, weight_of
from .shapes import read_prompt

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mt_core import Template, Tokenizer
    from mt_train import Policy, Prompt, Record

    from ..reward_functions.base import Reward
    from .online_config import AnswerOptions


class OnlineObjective(TokenObjective):
    """Rows with prompts, which the model answers. Subclasses choose from the answers, and have a loss."""

    def __init__(
        self, tokenizer: Tokenizer, template: Template, config: AnswerOptions, rewards: Mapping[str, Reward]
    ) -> None:
        super().__init__(pad_id=tokenizer.pad_id or 0)
        self._template, self._options, self._rewards = template, config, dict(rewards)
        self.prompts, self.updates, self.passes = config.prompts, config.updates, config.passes
        self.max_new_tokens, self.replay = config.max_new_tokens, config.replay

    def encode(self, row: Row) -> Sample:
        """The prompt of a row. Raises ``DataError`` for a row without one."""
        ids = self._template.prompt(read_prompt(row))
        return Sample(ids, [False] * len(ids), row["id"])

    def collect(
        self, prompts: Sequence[Prompt], policy: Policy, *, seed: int, previous: Sequence[Record]
    ) -> list[dict[str, Any]]:
        """Answers to each prompt with their scores. Raises ``ComponentError`` for a reward that fails."""
        return write_answers(prompts, policy, self._rewards, self._options, seed=seed)

    def rank(self, records: Sequence[Record]) -> list[tuple[list[Record], NDArray[np.float64]]]:
        """Return the answers of each group that can be learned from, the best first, and their rewards."""
        return [_best_first(group, self._rewards, self._options) for group in groups_of(records)]


def write_answers(
    prompts: Sequence[Prompt], policy: Policy, rewards: Mapping[str, Reward], options: AnswerOptions, *, seed: int
) -> list[dict[str, Any]]:
    """Return answers of a policy with their scores as plain data, those to one prompt behind one another."""
    asked = [prompt for prompt in prompts for _ in range(options.group)]
    rules = SamplingRules(temperature=options.temperature)
    drawn = policy.generate(
        [prompt.ids for prompt in asked],
        GenerationConfig(rules=rules, max_new_tokens=options.max_new_tokens, seed=seed),
        weights="auto",
    )
    answers = [
        Answer(each.text, _with_end(each), each.finish, prompt.row, number // options.group)
        for number, (prompt, each) in enumerate(zip(asked, drawn, strict=True))
    ]
    scores = score_answers(rewards, answers)
    return [
        {
            "row_id": prompt.row["id"],
            "group": answer.group,
            "prompt": list(prompt.ids),
            "ids": list(answer.ids),
            "text": answer.text,
            "finish": answer.finish,
            "rewards": {name: scores[name][number] for name in scores},
        }
        for number, (prompt, answer) in enumerate(zip(asked, answers, strict=True))
    ]


def describe_answers(records: Sequence[Record], rewards: Mapping[str, Reward]) -> dict[str, float]:
    """Return figures of all answers of an iteration: rewards, lengths, how many are cut, and how many groups are alike."""
    totals_A, lengths = totals_of(records, rewards), [len(record["ids"]) for record in records]
    figures = {"reward": mean_of_known(totals_A)}
    for name in rewards:
        figures[f"reward_{name.replace('-', '_')}"] = mean_of_known(record["rewards"][name] for record in records)
    spreads = [_spread(totals_of(group, rewards)) for group in groups_of(records)]
    return figures | {
        "groups_alike": float(np.mean([spread == 0 for spread in spreads])),
        "answer_tokens": float(np.mean(lengths)),
        "answer_tokens_most": float(max(lengths)),
        "answers_cut": float(np.mean([record["finish"] in CUT for record in records])),
        "answers_unscored": float(np.isnan(totals_A).mean()),
    }


def groups_of(records: Sequence[Record]) -> list[list[Record]]:
    """Return the answers to each prompt."""
    groups: dict[int, list[Record]] = {}
    for record in records:
        groups.setdefault(record["group"], []).append(record)
    return list(groups.values())


def totals_of(records: Sequence[Record], rewards: Mapping[str, Reward]) -> NDArray[np.float64]:
    """Return the weighted sum of each answer's scores, (A,)."""
    weights = {name: weight_of(each) for name, each in rewards.items()}
    return np.array([total_of(record["rewards"], weights) for record in records], np.float64)


def mean_of_known(values: Iterable[float | None]) -> float:
    """Return the mean of the numbers that are there; 0 for none."""
    known = [value for value in values if value is not None and not math.isnan(value)]
    return float(np.mean(known)) if known else 0.0


def encode_answer(record: Record) -> Encoded:
    """The prompt and the answer behind it, whose tokens are trained on."""
    prompt, ids = record["prompt"], record["ids"]
    return Encoded([*prompt, *ids], [False] * len(prompt) + [True] * len(ids))


def sample_of(record: Record) -> Sample:
    """An answer behind its prompt as a sample."""
    encoded = encode_answer(record)
    return Sample(encoded.ids, encoded.trained, record["row_id"])


def _with_end(drawn: Generation) -> list[int]:
    """Return the tokens of an answer, with the one that ended it."""
    return [*drawn.ids, *([] if drawn.end_id is None else [drawn.end_id])]


def _best_first(
    group: Sequence[Record], rewards: Mapping[str, Reward], options: AnswerOptions
) -> tuple[list[Record], NDArray[np.float64]]:
    """Return answers that have a score and a token, the first written of equals first; cut ones where they count."""
    totals_G = totals_of(group, rewards)
    can_G = [bool(record["ids"]) and not (record["finish"] in CUT and options.truncated == "mask") for record in group]
    order = np.argsort(-totals_G, kind="stable")
    places = [place for place in order.tolist() if can_G[place] and not math.isnan(totals_G[place])]
    return [group[place] for place in places], totals_G[places]


def _spread(totals_G: NDArray[np.float64]) -> float:
    """Return by how much the best of a group is better than the worst; 0 where fewer than two have a score."""
    known = totals_G[~np.isnan(totals_G)]
    return float(np.ptp(known)) if len(known) else 0.0
