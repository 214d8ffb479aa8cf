"""Rejection-sampling fine-tuning: the best of several answers are learned as if somebody had written them.

RAFT (https://arxiv.org/abs/2304.06767), §3.2.3 of Llama 2 (https://arxiv.org/abs/2307.09288); with ``least`` all that are good enough,
as RFT (https://arxiv.org/abs/2308.01825) and STaR (https://arxiv.org/abs/2203.14465) have it where answers are right or wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mt_core import Sample

from .online import OnlineObjective, sample_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mt_core import Template, Tokenizer
    from mt_train import Record

    from ..reward_functions.base import Reward
    from .online import Ranking
    from .online_config import RejectionConfig


class RejectionObjective(OnlineObjective):
    """Rows with prompts. The loss is that of ``sft`` over the answers that are kept: a mean over their tokens."""

    def __init__(
        self, tokenizer: Tokenizer, template: Template, config: RejectionConfig, rewards: Mapping[str, Reward]
    ) -> None:
        super().__init__(tokenizer, template, config, rewards)
        self._keep, self._least = config.keep, -np.inf if config.least is None else config.least

    def learn(self, records: Sequence[Record]) -> tuple[list[Sample], dict[str, float]]:
        """The answers that are kept, and figures of the iteration. Where none is, its steps have no gradient."""
        groups, figures = self.rank(records)
        kept = [self._best(answers, totals_G) for answers, totals_G in groups]
        samples = [sample_of(answer) for answers, _ in kept for answer in answers]
        return samples, figures | {
            "kept_reward": float(np.concatenate([totals_G for _, totals_G in kept]).mean()) if samples else 0.0,
            "answers_kept": len(samples) / len(records),
            "groups_empty": sum(not answers for answers, _ in kept) / len(groups),
        }

    def _best(self, answers: list[Record], totals_G: NDArray[np.float64]) -> Ranking:
        """Return the first answers, as many as are kept and good enough, and their rewards."""
        count = min(self._keep, int((totals_G >= self._least).sum()))
        return answers[:count], totals_G[:count]
