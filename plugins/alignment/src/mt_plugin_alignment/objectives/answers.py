"""Answers as they are collected: written, scored, and measured where the loss needs that. A record of one is plain data.

Shapes: P prompts, G answers to each.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mt_core import ComponentError, UsageError
from mt_core.generation import GenerationConfig, SamplingRules

from ..reward_functions.base import Answer
from ..samplers.answers import refuse_partial_support, write_answers
from ..scores import score_answers
from ..stopwatch import Stopwatch
from .shapes import read_prompt

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mt_core import Tokenizer
    from mt_train import Policy, Prompt

    from ..reward_functions.base import Reward
    from ..samplers.base import Sampler
    from .grpo_config import GrpoConfig

OLD, REFERENCE, SAMPLED = "old", "reference", "sampled"
"""Log-probabilities of an answer's tokens: for the trainer that wrote it, for the model of step 0, for the sampler."""
FIRST, GREEDY = "first", "greedy"
"""Scores of the answer that stood here before its prompt was answered again, and the greedy answer to the prompt."""
CUT = ("length", "context")
"""Ends of an answer that is not finished."""

Record = dict[str, Any]


class Scored(NamedTuple):
    """An answer, what each reward says of it, and log-probabilities of its tokens where its sampler was asked for them."""

    answer: Answer
    rewards: dict[str, float | None]
    logprobs: Sequence[float]


class AnswerWriter:
    """Has a sampler write answers to prompts, and rewards score them; ``watch`` has the seconds of both, from each ``write`` on."""

    def __init__(
        self, config: GrpoConfig, rewards: Mapping[str, Reward], sampler: Sampler | None, tokenizer: Tokenizer
    ) -> None:
        self._config, self._rewards, self._sampler = config, rewards, sampler
        self._tokenizer, self.watch = tokenizer, Stopwatch()
        if config.importance != "none":
            refuse_partial_support(sampler, SamplingRules(temperature=config.temperature))
        self._weights = {name: weight_of(each) for name, each in rewards.items()}

    def write(self, prompts: Sequence[Prompt], policy: Policy, *, seed: int) -> list[Record]:
        """Return G records for each prompt. Raises ``ComponentError`` for a reward that fails.

        Prompts whose answers all score the same are answered again by another seed, up to ``resample`` times; what stays so has no
        advantage.
        """
        self.watch.clear()
        records = self._write(prompts, range(len(prompts)), policy, seed)
        for turn in range(1, self._config.resample + 1):
            alike = policy.once(lambda: self._alike(records))  # a reward may say something else on another rank
            if not alike:
                break
            another = int(np.random.SeedSequence([seed, turn]).generate_state(1)[0])
            places = [number * self._config.group + each for number in alike for each in range(self._config.group)]
            for place, record in zip(places, self._write(prompts, alike, policy, another), strict=True):
                records[place] = {**record, FIRST: records[place].get(FIRST, records[place]["rewards"])}
        if self._config.baseline == "greedy":
            self._add_greedy(records, prompts, policy)
        texts = [self._tokenizer.decode(list(prompt.ids)) for prompt in prompts]
        for record in records:  # the sum and the text are for readers of the file: nothing is learned from them
            total = total_of(record["rewards"], self._weights)
            record |= {"reward": None if math.isnan(total) else total, "prompt_text": texts[record["group"]]}
        return records

    def _write(self, prompts: Sequence[Prompt], numbers: Sequence[int], policy: Policy, seed: int) -> list[Record]:
        """Return G records for each of the prompts with these numbers."""
        config = self._config
        rules = SamplingRules(temperature=config.temperature, top_p=config.top_p, top_k=config.top_k)
        asked = [number for number in numbers for _ in range(config.group)]
        records = []
        for scored in self._answer(prompts, asked, policy, rules, seed):
            answer = scored.answer
            record: Record = {
                "row_id": answer.row["id"],
                "group": answer.group,
                "prompt": list(prompts[answer.group].ids),
                "ids": list(answer.ids),
                "text": answer.text,
                "finish": answer.finish,
                "rewards": scored.rewards,
            }
            if config.importance != "none":
                record[SAMPLED] = _logprobs(scored)
            records.append(record)
        return records

    def _answer(
        self, prompts: Sequence[Prompt], asked: Sequence[int], policy: Policy, rules: SamplingRules, seed: int
    ) -> list[Scored]:
        """Return an answer to each of the prompts with these numbers, scored."""
        wish = GenerationConfig(
            rules=rules,
            max_new_tokens=self._config.max_new_tokens,
            seed=seed,
            logprobs=self._config.importance != "none",
        )
        with self.watch.measure("write"):
            drawn = write_answers(self._sampler, policy, [prompts[number].ids for number in asked], wish)
        answers = [
            Answer(
                text=each.text,
                ids=each.ids,
                finish=each.finish,
                row=prompts[number].row,
                group=number,
                prompt=read_prompt(prompts[number].row),
                prompt_ids=prompts[number].ids,
            )
            for number, each in zip(asked, drawn, strict=True)
        ]
        with self.watch.measure("score"):
            scores = score_answers(self._rewards, answers, policy, self._config)
        return [
            Scored(answer, {name: each[place] for name, each in scores.items()}, drawn[place].logprobs or ())
            for place, answer in enumerate(answers)
        ]

    def _alike(self, records: Sequence[Record]) -> list[int]:
        """Return the numbers of prompts whose answers all score the same."""
        return np.flatnonzero(groups_alike(records, self._weights, self._config)).tolist()

    def _add_greedy(self, records: Sequence[Record], prompts: Sequence[Prompt], policy: Policy) -> None:
        """Give each record the text and the scores of the greedy answer to its prompt."""
        greedy = self._answer(prompts, range(len(prompts)), policy, SamplingRules(greedy=True), 0)
        for record in records:
            answer, rewards, _ = greedy[record["group"]]
            record[GREEDY] = {"text": answer.text, "finish": answer.finish, "rewards": rewards}


def refuse_other_records(records: Sequence[Mapping[str, Any]], config: GrpoConfig, rewards: Collection[str]) -> None:
    """Raise ``UsageError`` for answers that another run collected, and which lack what these options need."""
    groups = [record["group"] for record in records]
    if groups != [number for number in range(len(groups) // config.group) for _ in range(config.group)]:
        found = groups.count(groups[0])
        if found == config.group:
            raise UsageError(
                f"the answers are not {found} to each prompt: some are missing. Take the file of a run that ended"
            )
        raise UsageError(f"the answers are {found} to each prompt, and objective.group is {config.group}; set {found}")
    if missing := [name for name in rewards if not all(name in record["rewards"] for record in records)]:
        raise UsageError(
            f"the answers have no scores of reward {missing[0]}; name the rewards that they were collected with"
        )
    needs = {
        OLD: ("updates, passes, importance, or kl in rewards", config.measures_old),
        REFERENCE: ("kl", config.kl > 0),
        SAMPLED: ("importance", config.importance != "none"),
        GREEDY: ("baseline greedy", config.baseline == "greedy"),
    }
    for name, (option, needed) in needs.items():
        if needed and not all(name in record for record in records):
            raise UsageError(
                f"the answers have no {name!r}, which is written where it is needed, and which objective.{option} needs; collect them"
                " with these options, or leave the option out"
            )


def groups_alike(
    records: Sequence[Mapping[str, Any]], weights: Mapping[str, float], config: GrpoConfig
) -> NDArray[np.bool_]:
    """Return for each group whether nothing sets its answers apart, (P,): neither sums of rewards, nor where each is compared by itself
    any that counts. Scores that are missing say nothing."""
    if config.normalise == "sum":
        columns = [[total_of(record["rewards"], weights) for record in records]]
    else:
        columns = [scores_of(records, name).tolist() for name, weight in weights.items() if weight]
    alike_P = np.ones(len(records) // config.group, dtype=np.bool_)
    for column in columns:
        values_PG = np.array(column).reshape(-1, config.group)
        known = ~np.isnan(values_PG)
        high, low = np.where(known, values_PG, -np.inf).max(1), np.where(known, values_PG, np.inf).min(1)
        alike_P &= high <= low
    return alike_P


def scores_of(records: Sequence[Mapping[str, Any]], name: str) -> NDArray[np.float64]:
    """Return what a reward says of each answer; NaN where it says nothing."""
    scores = [record["rewards"][name] for record in records]
    return np.array([math.nan if score is None else score for score in scores], dtype=np.float64)


def weight_of(reward: Reward) -> float:
    """Return what a reward counts in the sum; 1 where it does not say."""
    return float(getattr(reward, "weight", 1.0))


def total_of(scores: Mapping[str, float | None], weights: Mapping[str, float]) -> float:
    """Return the weighted sum of an answer's scores; NaN where one that counts is missing."""
    counted = [(weight, scores[name]) for name, weight in weights.items() if weight]
    return (
        math.nan
        if any(score is None for _, score in counted)
        else sum(weight * (score or 0.0) for weight, score in counted)
    )


def _logprobs(scored: Scored) -> list[float]:
    """Return what the sampler says of an answer's tokens. Raises ``ComponentError`` where it says nothing."""
    answer, found = scored.answer, scored.logprobs
    if len(found) != len(answer.ids):
        raise ComponentError(
            f"the sampler gives {len(found)} log-probabilities for an answer of {len(answer.ids)} tokens to {answer.row['id']};"
            " a correction for it needs one for each. Leave importance out, or take a sampler that gives them"
        )
    return list(found)
