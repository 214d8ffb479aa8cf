"""Rejection-sampling fine-tuning: the best of several answers are learned as if somebody had written them.

RAFT (https://arxiv.org/abs/2304.06767), §3.2.3 of Llama 2 (https://arxiv.org/abs/2307.09288); with ``least`` all that are good enough,
as RFT (https://arxiv.org/abs/2308.01825) and STaR (https://arxiv.org/abs/2203.14465) have it where answers are right or wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mt_core import Sample

from .online import sample_of
from .ranking import RankingObjective

if TYPE_CHECKING:
    from mt_core import Template, Tokenizer
    from mt_train import Record

    from ..reward_functions.base import Reward
    from ..samplers.base import Sampler
    from .online_config import RejectionConfig


class RejectionObjective(RankingObjective):
    """Rows with prompts. The loss is that of ``sft`` over the answers that are kept: a mean over their tokens."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: Template,
        config: RejectionConfig,
        rewards: Mapping[str, Reward],
        sampler: Sampler | None = None,
    ) -> None:
        super().__init__(tokenizer, template, config, rewards, sampler)
        self._keep, self._least = config.keep, -np.inf if config.least is None else config.least

    def learn(self, records: Sequence[Record]) -> tuple[list[Sample], dict[str, float]]:
        """The answers that are kept, and figures of the iteration. Where none is, its steps have no gradient."""
        groups, table = self.rank(records)
        kept = [numbers_G[table.totals[numbers_G] >= self._least][: self._keep] for numbers_G in groups]
        numbers = np.concatenate(kept)
        return [sample_of(records[number]) for number in numbers.tolist()], table.figures() | {
            "kept_reward": float(table.totals[numbers].mean()) if len(numbers) else 0.0,
            "answers_kept": len(numbers) / len(records),
            "groups_empty": float(np.mean([not len(each) for each in kept])),
        }
