"""The answers of an iteration as columns: rewards, lengths, ends, and figures of them. Torch is not imported.

Shapes: P prompts, G answers to each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .answer_figures import answer_figures, reward_figures
from .answers import CUT, FIRST
from .totals import scores_of, totals_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .answer_options import AnswerOptions

Records = Sequence[Mapping[str, Any]]


class AnswerTable:
    """Columns of (P·G,) numbers, one for each answer of an iteration.

    ``totals`` are weighted sums of rewards, NaN where one is missing, and ``credited`` the same less ``penalty`` for an answer without an
    end; ``is_learned`` is false for answers without a score or a token, and for masked ones. With ``compares`` it is a figure how many
    groups have answers that nothing sets apart, with ``each`` no reward.
    """

    def __init__(
        self,
        records: Records,
        weights: Mapping[str, float],
        options: AnswerOptions,
        *,
        compares: bool,
        each: bool = False,
        penalty: float = 0.0,
    ) -> None:
        self._records, self._weights, self._group = records, weights, options.group
        self._compares, self._each, self._penalty = compares, each, penalty
        self.totals = totals_of(records, weights)
        self.lengths = np.array([len(record["ids"]) for record in records])
        self.is_cut = np.array([record["finish"] in CUT for record in records])
        self.credited = self.totals - penalty * self.is_cut
        is_masked = self.is_cut & (options.truncated == "mask")
        self.is_learned = ~np.isnan(self.totals) & ~is_masked & (self.lengths > 0)

    def figures(self) -> dict[str, float]:
        """Return figures of the iteration. Rewards are those of the answers that were written first, not of those that were kept."""
        first = [{**record, "rewards": record.get(FIRST, record["rewards"])} for record in self._records]
        figures = reward_figures(first, self._weights)
        if self._compares:
            alike_P = groups_alike(self._records, self._weights, self._group, each=self._each, penalty=self._penalty)
            figures["groups_alike"] = float(alike_P.mean())
        return figures | answer_figures(self._records, self._weights)


def groups_alike(
    records: Records, weights: Mapping[str, float], group: int, *, each: bool = False, penalty: float = 0.0
) -> NDArray[np.bool_]:
    """Return for each group whether nothing sets its answers apart, (P,): no sum of rewards, or with ``each`` no reward that counts.

    ``penalty`` is taken off the sum of an answer without an end, as where it is credited. Scores that are missing say nothing.
    """
    if each:
        columns = [scores_of(records, name) for name, weight in weights.items() if weight]
    else:
        is_cut = np.array([record["finish"] in CUT for record in records])
        columns = [totals_of(records, weights) - penalty * is_cut]
    alike_P = np.ones(len(records) // group, dtype=np.bool_)
    for column in columns:
        values_PG = column.reshape(-1, group)
        known = ~np.isnan(values_PG)
        high, low = np.where(known, values_PG, -np.inf).max(1), np.where(known, values_PG, np.inf).min(1)
        alike_P &= high <= low
    return alike_P
