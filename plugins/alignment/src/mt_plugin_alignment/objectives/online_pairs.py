"""Online DPO (https://arxiv.org/abs/2402.04792): the best and the worst of several answers of the model are a pair.

Shapes: B rows, T tokens, D model width, n trained tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mt_core import Encoded, Sample, UsageError
from mt_core.nn import Batch, LossSums, token_logprobs

from .answers import REFERENCE
from .online import sample_of
from .preference import TAIL, PreferenceObjective
from .ranking import RankingObjective
from .rows import PLACE, item, places_of

if TYPE_CHECKING:
    from mt_core import Template, Tokenizer
    from mt_train import Policy, Prompt, Record

    from ..losses.base import PreferenceLoss
    from ..reward_functions.base import Reward
    from ..samplers.base import Sampler
    from .online_config import OnlineDpoConfig

SCORED, IMPLICIT = "reward_", "implicit_reward_"
"""Figures of pairs begin with the first; here that is a reward's figure, and what follows from the model itself is the second (DPO)."""


class _Pair(NamedTuple):
    """The numbers of two answers to one prompt, and by how much the first has more reward."""

    chosen: int
    rejected: int
    gap: float


class OnlineDpoObjective(RankingObjective):
    """Rows with prompts. The loss is that of the objective over pairs, whose reference is measured when answers are written."""

    loss_unit = PreferenceObjective.loss_unit
    answers_in_sample = 2

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: Template,
        config: OnlineDpoConfig,
        rewards: Mapping[str, Reward],
        losses: Sequence[PreferenceLoss],
        sampler: Sampler | None = None,
    ) -> None:
        super().__init__(tokenizer, template, config, rewards, sampler)
        self._of_pairs = PreferenceObjective(tokenizer, template, config, losses, config.weights)
        self._has_tails = config.ld_alpha < 1
        self._begins_with_pairs: bool | None = None

    @property
    def first_loss(self) -> float | None:
        """See ``PreferenceObjective``; ``None`` as well where the first iteration has no pair."""
        return self._of_pairs.first_loss if self._begins_with_pairs else None

    # ------------------------------------------------------------------------------------------------------- collecting

    def collect(
        self, prompts: Sequence[Prompt], policy: Policy, *, seed: int, previous: Sequence[Record]
    ) -> list[dict[str, Any]]:
        """Answers with their scores, those of pairs with the log-probabilities that their tokens have for the model of step 0."""
        records = super().collect(prompts, policy, seed=seed, previous=previous)
        if not self._of_pairs.reference_values:
            return records
        # What ranks score together may differ in its last bits, and all of them have to measure the same answers.
        numbers = policy.once(lambda: [number for pair in self._pairs(records)[0] for number in pair[:2]])
        with self._writer.watch.measure("measure"):
            measured = policy.measure([sample_of(records[number]) for number in numbers], _logprobs, view="reference")
        for number, values in zip(numbers, measured, strict=True):
            records[number][REFERENCE] = values[REFERENCE].tolist()
        return records

    def learn(self, records: Sequence[Record]) -> tuple[list[Sample], dict[str, float]]:
        """The pairs, and figures of the iteration; without a pair its steps have no gradient.

        Raises ``UsageError`` for replayed answers without what the loss needs.
        """
        pairs, figures = self._pairs(records)
        if self._begins_with_pairs is None:  # a fresh run learns from nothing before its first iteration
            self._begins_with_pairs = bool(pairs)
        samples = [self._sample(records[pair.chosen], records[pair.rejected]) for pair in pairs]
        return samples, figures | {
            "pair_gap": float(np.mean([pair.gap for pair in pairs])) if pairs else 0.0,
            "groups_unpaired": 1 - len(pairs) / (len(records) // self._group),
        }

    def _pairs(self, records: Sequence[Record]) -> tuple[list[_Pair], dict[str, float]]:
        """Return the pair of each group, the first written of equals, and figures of all answers.

        There is none of answers that are all as good, or the same.
        """
        groups, table = self.rank(records)
        pairs = []
        for numbers_G in groups:
            totals_G = table.totals[numbers_G]
            worst = int((totals_G > totals_G.min(initial=np.inf)).sum())
            if worst == 0:
                continue
            chosen, rejected = int(numbers_G[0]), int(numbers_G[worst])
            if records[chosen]["ids"] != records[rejected]["ids"]:
                pairs.append(_Pair(chosen, rejected, float(totals_G[0] - totals_G[worst])))
        return pairs, table.figures()

    def _sample(self, *sides: Record) -> Sample:
        """Return two answers as one sample, the chosen one first."""
        encoded = [Encoded(list(each.ids), list(each.trained)) for each in map(sample_of, sides)]
        values = self._reference(sides) if self._of_pairs.reference_values else {}
        places = places_of(encoded) if self._has_tails else {}
        return item(encoded, sides[0]["row_id"], document_values=values, token_values=places)

    def _reference(self, sides: Sequence[Record]) -> dict[str, list[float]]:
        """Return what the model of step 0 gives both answers: see ``PreferenceObjective.measure``."""
        if any(REFERENCE not in side for side in sides):
            raise UsageError(
                f"an answer to {sides[0]['row_id']} was written down without log-probabilities of the model of step 0, which this loss"
                " compares with. Replay a run of online-dpo with the same rewards and such a loss, or take a loss without a reference"
                " (simpo, cpo, orpo)"
            )
        logps = [np.array(side[REFERENCE]) for side in sides]
        shared = min(map(len, logps))
        found = {REFERENCE: [float(each.sum()) for each in logps], TAIL: [float(each[shared:].sum()) for each in logps]}
        return {name: found[name] for name in self._of_pairs.reference_values}

    # --------------------------------------------------------------------------------------------------------- learning

    def collate(self, rows: Sequence[Sequence[Sample]], *, length: int) -> Batch:
        """See ``PreferenceObjective`` for pairs; answers that are measured are documents by themselves, and so are prompts."""
        first = next(chain.from_iterable(rows), None)
        if first is not None and not first.documents:
            return super().collate(rows, length=length)
        batch = self._of_pairs.collate(rows, length=length)
        if not self._has_tails or PLACE in batch.tokens:
            return batch
        return replace(batch, tokens={**batch.tokens, PLACE: torch.zeros(batch.labels.shape)})  # a step without pairs

    def count(self, batch: Batch) -> float:
        """Return the pairs of the batch that this rank counts."""
        return self._of_pairs.count(batch)

    def count_terms(self, batch: Batch) -> Mapping[str, float]:
        """See ``PreferenceObjective``."""
        return self._of_pairs.count_terms(batch)

    def loss(self, hidden: Tensor, head: nn.Module, batch: Batch) -> LossSums:
        """Sum over the pairs of the batch; see ``PreferenceObjective``."""
        sums = self._of_pairs.loss(hidden, head, batch)
        figures = {
            f"{IMPLICIT}{name.removeprefix(SCORED)}" if name.startswith(SCORED) else name: value
            for name, value in sums.metrics.items()
        }
        return replace(sums, metrics=figures)


def _logprobs(hidden: Tensor, head: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """(B, T, D) -> (n,): how likely each token of an answer is."""
    return {REFERENCE: token_logprobs(head, *batch.select_trained(hidden))[0]}
