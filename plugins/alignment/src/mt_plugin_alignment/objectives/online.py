"""Base of objectives that learn from some of the model's own answers, which rewards choose.

Shapes: A answers of an iteration, G answers to one prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mt_core import Encoded, Row, Sample
from mt_core.nn import TokenObjective

from ..scores import ScoreOptions
from .answers import AnswerWriter, refuse_other_records, weight_of
from .credit import Credit
from .grpo_config import GrpoConfig
from .shapes import read_prompt

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mt_core import Template, Tokenizer
    from mt_train import Policy, Prompt, Record

    from ..reward_functions.base import Reward
    from ..samplers.base import Sampler
    from .online_config import AnswerOptions


class OnlineObjective(TokenObjective):
    """Rows with prompts, which the model answers. Subclasses choose from the answers, and have a loss."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: Template,
        config: AnswerOptions,
        rewards: Mapping[str, Reward],
        sampler: Sampler | None = None,
    ) -> None:
        super().__init__(pad_id=tokenizer.pad_id or 0)
        self._template = template
        self._collecting = _collecting(config)
        self._writer = AnswerWriter(self._collecting, rewards, sampler, tokenizer)
        self._weights = {name: weight_of(each) for name, each in rewards.items()}
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
        return self._writer.write(prompts, policy, seed=seed)

    @property
    def seconds(self) -> Mapping[str, float]:
        """Return what parts of the last ``collect`` took (seconds)."""
        return self._writer.watch.seconds

    def rank(self, records: Sequence[Record]) -> tuple[list[NDArray[np.int64]], Credit]:
        """Return the numbers of the answers to each prompt that can be learned from, the best first, and what is known of all answers.

        Of equals the first written comes first. Raises ``UsageError`` for answers of another run that lack what these options need.
        """
        refuse_other_records(records, self._collecting, self._weights)
        credit = Credit(records, self._weights, self._collecting)
        order_PG = np.argsort(-credit.totals.reshape(-1, self._collecting.group), axis=1, kind="stable")
        order_PG += self._collecting.group * np.arange(len(order_PG))[:, None]
        return [numbers_G[credit.is_learned[numbers_G]] for numbers_G in order_PG], credit


def encode_answer(record: Record) -> Encoded:
    """The prompt and the answer behind it, whose tokens are trained on."""
    prompt, ids = record["prompt"], record["ids"]
    return Encoded([*prompt, *ids], [False] * len(prompt) + [True] * len(ids))


def sample_of(record: Record) -> Sample:
    """An answer behind its prompt as a sample."""
    encoded = encode_answer(record)
    return Sample(encoded.ids, encoded.trained, record["row_id"])


def _collecting(config: AnswerOptions) -> GrpoConfig:
    """Return how answers are written: as those of GRPO, without what is of its advantages."""
    names = ("group", "max_new_tokens", "temperature", "top_p", "top_k", "truncated", *ScoreOptions.model_fields)
    baseline = "group" if config.group > 1 else "none"
    return GrpoConfig(baseline=baseline, scale="none", **{name: getattr(config, name) for name in names})
