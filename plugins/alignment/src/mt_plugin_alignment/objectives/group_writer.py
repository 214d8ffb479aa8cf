"""Answers to be compared with each other, or with a greedy one: written again while nothing sets them apart.

Shapes: P prompts, G answers to each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mt_core import UsageError
from mt_core.generation import SamplingRules

from .answer_table import groups_alike
from .answers import FIRST, OLD, REFERENCE, SAMPLED, AnswerWriter, Record, refuse_other_groups, refuse_other_rewards

if TYPE_CHECKING:
    from collections.abc import Collection

    from mt_core import Template, Tokenizer
    from mt_train import Policy, Prompt

    from ..reward_functions.base import Reward
    from ..samplers.base import Sampler
    from .grpo_config import GrpoConfig

GREEDY = "greedy"
"""The greedy answer to the prompt, with its scores."""


class GroupWriter(AnswerWriter):
    """Writes answers as the options of GRPO say.

    Prompts whose answers all score the same are answered again by another seed, up to ``resample`` times; what stays so has no advantage.
    """

    def __init__(
        self,
        config: GrpoConfig,
        rewards: Mapping[str, Reward],
        sampler: Sampler | None,
        tokenizer: Tokenizer,
        template: Template,
    ) -> None:
        super().__init__(config, rewards, sampler, tokenizer, template, logprobs=config.importance != "none")
        self._config = config

    def _collect(self, prompts: Sequence[Prompt], policy: Policy, seed: int) -> list[Record]:
        records = super()._collect(prompts, policy, seed)
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
        return records

    def _alike(self, records: Sequence[Record]) -> list[int]:
        """Return the numbers of prompts whose answers all score the same, the penalty of those without an end taken off."""
        config = self._config
        alike_P = groups_alike(
            records,
            self.weights,
            config.group,
            each=config.normalise == "each",
            penalty=config.missing_eos_penalty,
        )
        return np.flatnonzero(alike_P).tolist()

    def _add_greedy(self, records: Sequence[Record], prompts: Sequence[Prompt], policy: Policy) -> None:
        """Give each record the text and the scores of the greedy answer to its prompt."""
        greedy = self._answer(prompts, range(len(prompts)), policy, SamplingRules(greedy=True), 0)
        for record in records:
            answer, rewards, _ = greedy[record["group"]]
            record[GREEDY] = {"text": answer.text, "finish": answer.finish, "rewards": rewards}


def refuse_other_records(records: Sequence[Mapping[str, Any]], config: GrpoConfig, rewards: Collection[str]) -> None:
    """Raise ``UsageError`` for answers that another run collected, and which lack what these options need."""
    refuse_other_groups(records, config.group)
    refuse_other_rewards(records, rewards)
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
