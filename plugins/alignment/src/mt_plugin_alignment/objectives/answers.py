"""Answers as they are collected: written, scored, and measured where the loss needs that. A record of one is plain data.

Shapes: P prompts, G answers to each.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mt_core import ComponentError, UsageError
from mt_core.generation import GenerationConfig, SamplingRules

from ..reward_functions.base import Answer
from ..samplers.answers import refuse_partial_support, write_answers
from ..scores import BadAnswers, score_answers
from ..stopwatch import Stopwatch
from .shapes import read_prompt
from .tool_rounds import ToolRounds, Written, tool_record
from .totals import totals_of, weight_of

if TYPE_CHECKING:
    from mt_core import Message, Row, Template, Tokenizer
    from mt_train import Policy, Prompt

    from ..reward_functions.base import Reward
    from ..samplers.base import Sampler
    from .answer_options import AnswerOptions

OLD, REFERENCE, SAMPLED = "old", "reference", "sampled"
"""Log-probabilities of an answer's tokens: for the trainer that wrote it, for the model of step 0, for the sampler."""
FIRST = "first"
"""Scores of the answer that stood here before its prompt was answered again."""
CUT = ("length", "context")
"""Ends of an answer that is not finished."""

Record = dict[str, Any]


class ScoredAnswer(NamedTuple):
    """An answer, what each reward says of it, and how it was written: log-probabilities of its tokens where its sampler gave them."""

    answer: Answer
    rewards: dict[str, float | None]
    written: Written


class AnswerWriter:
    """Has a sampler write answers to prompts, and rewards score them; ``watch`` has the seconds of both, from each ``write`` on."""

    def __init__(
        self,
        options: AnswerOptions,
        rewards: Mapping[str, Reward],
        sampler: Sampler | None,
        tokenizer: Tokenizer,
        template: Template,
        *,
        logprobs: bool = False,
    ) -> None:
        """With ``logprobs`` records have what the sampler says of each token; ``UsageError`` for one that draws from only some of them.

        Raises ``UsageError`` as well for tools that cannot be called.
        """
        self._options, self._rewards, self._sampler = options, rewards, sampler
        self._tokenizer, self.watch = tokenizer, Stopwatch()
        self.weights = {name: weight_of(each) for name, each in rewards.items()}
        self._logprobs = logprobs
        self._bad: BadAnswers = {}
        self._tools = None if options.tools is None else ToolRounds(options, template, tokenizer)
        if logprobs:
            refuse_partial_support(sampler, SamplingRules(temperature=options.temperature))

    def read_prompt(self, row: Row) -> list[Message]:
        """Return the turns that are to be answered, with the tools that may be called. Raises ``DataError`` for a row without any."""
        turns = read_prompt(row)
        return turns if self._tools is None else self._tools.declare(turns, row["id"])

    def write(self, prompts: Sequence[Prompt], policy: Policy, *, seed: int) -> list[Record]:
        """Return G records for each prompt. Raises ``ComponentError`` for a sampler or a reward that fails."""
        self.watch.clear()
        self._bad = {}
        records = self._collect(prompts, policy, seed)
        texts = [self._tokenizer.decode(list(prompt.ids)) for prompt in prompts]
        totals = totals_of(records, self.weights).tolist()
        # the sum and the text are for readers of the file: nothing is learned from them
        for record, total in zip(records, totals, strict=True):
            record |= {"reward": None if math.isnan(total) else total, "prompt_text": texts[record["group"]]}
        return records

    def _collect(self, prompts: Sequence[Prompt], policy: Policy, seed: int) -> list[Record]:
        return self._write(prompts, range(len(prompts)), policy, seed)

    def _write(self, prompts: Sequence[Prompt], numbers: Sequence[int], policy: Policy, seed: int) -> list[Record]:
        """Return G records for each of the prompts with these numbers."""
        options = self._options
        rules = SamplingRules(temperature=options.temperature, top_p=options.top_p, top_k=options.top_k)
        asked = [number for number in numbers for _ in range(options.group)]
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
            if self._logprobs:
                record[SAMPLED] = _logprobs(scored)
            if self._tools is not None:
                record |= tool_record(scored.written)
            records.append(record)
        return records

    def _answer(
        self, prompts: Sequence[Prompt], asked: Sequence[int], policy: Policy, rules: SamplingRules, seed: int
    ) -> list[ScoredAnswer]:
        """Return an answer to each of the prompts with these numbers, scored."""
        most = self._options.max_new_tokens
        wish = GenerationConfig(rules=rules, max_new_tokens=most, seed=seed, logprobs=self._logprobs)
        turns = {number: self.read_prompt(prompts[number].row) for number in set(asked)}
        drawn = self._draw(policy, [prompts[number].ids for number in asked], wish)
        answers = [
            Answer(
                text=each.text,
                ids=each.ids,
                finish=each.finish,
                row=prompts[number].row,
                group=number,
                prompt=turns[number],
                prompt_ids=prompts[number].ids,
                turns=each.turns if each.calls else (),
            )
            for number, each in zip(asked, drawn, strict=True)
        ]
        with self.watch.measure("score"):
            scores = score_answers(self._rewards, answers, policy, self._options, bad=self._bad)
        return [
            ScoredAnswer(answer, {name: each[place] for name, each in scores.items()}, drawn[place])
            for place, answer in enumerate(answers)
        ]

    def _draw(self, policy: Policy, prompts: Sequence[Sequence[int]], config: GenerationConfig) -> list[Written]:
        """Return an answer to each prompt (ids), in rounds where the model may call tools."""
        if self._tools is not None:
            return self._tools.write(self._sampler, policy, prompts, config, self.watch)
        answers = [Written(prompt) for prompt in prompts]
        with self.watch.measure("write"):
            for answer, drawn in zip(answers, write_answers(self._sampler, policy, prompts, config), strict=True):
                answer.take(drawn)
        return answers


def refuse_other_groups(records: Sequence[Mapping[str, Any]], group: int) -> None:
    """Raise ``UsageError`` for answers that another run collected, and which are not ``group`` to each prompt."""
    numbers = [record["group"] for record in records]
    if numbers == [number for number in range(len(numbers) // group) for _ in range(group)]:
        return
    found = numbers.count(numbers[0])
    if found == group:
        raise UsageError(
            f"the answers are not {found} to each prompt: some are missing. Take the file of a run that ended"
        )
    raise UsageError(f"the answers are {found} to each prompt, and objective.group is {group}; set {found}")


def refuse_other_rewards(records: Sequence[Mapping[str, Any]], rewards: Collection[str]) -> None:
    """Raise ``UsageError`` for answers that another run collected with other rewards."""
    if missing := [name for name in rewards if not all(name in record["rewards"] for record in records)]:
        raise UsageError(
            f"the answers have no scores of reward {missing[0]}; name the rewards that they were collected with"
        )


def _logprobs(scored: ScoredAnswer) -> list[float]:
    """Return what the sampler says of an answer's tokens. Raises ``ComponentError`` where it says nothing."""
    answer, found = scored.answer, scored.written.logprobs or ()
    if len(found) != len(answer.ids):
        raise ComponentError(
            f"the sampler gives {len(found)} log-probabilities for an answer of {len(answer.ids)} tokens to {answer.row['id']};"
            " a correction for it needs one for each. Leave importance out, or take a sampler that gives them"
        )
    return list(found)
