"""Base of objectives that learn from some of the answers to a prompt, which rewards choose.

Shapes: P prompts, G answers to each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from .answer_table import AnswerTable
from .answers import refuse_other_groups, refuse_other_rewards
from .online import OnlineObjective

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mt_core import Template, Tokenizer
    from mt_train import Record

    from ..reward_functions.base import Reward
    from ..samplers.base import Sampler
    from .answer_options import AnswerOptions


class RankingObjective(OnlineObjective):
    """Puts the answers to each prompt in the order of their rewards."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: Template,
        options: AnswerOptions,
        rewards: Mapping[str, Reward],
        sampler: Sampler | None = None,
    ) -> None:
        super().__init__(tokenizer, template, options, rewards, sampler)
        self._options = options

    def rank(self, records: Sequence[Record]) -> tuple[list[NDArray[np.int64]], AnswerTable]:
        """Return the numbers of the answers to each prompt that can be learned from, the best first, and what is known of all answers.

        Of equals the first written comes first. Raises ``UsageError`` for answers of another run that lack what these options need.
        """
        refuse_other_groups(records, self._group)
        refuse_other_rewards(records, self._writer.weights)
        table = AnswerTable(records, self._writer.weights, self._options, compares=self._group > 1)
        order_PG = np.argsort(-table.totals.reshape(-1, self._group), axis=1, kind="stable")
        order_PG += self._group * np.arange(len(order_PG))[:, None]
        return [numbers_G[table.is_learned[numbers_G]] for numbers_G in order_PG], table
