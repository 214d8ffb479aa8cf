"""Credit of tokens: from records of answers to the advantage of each token, in float64. Torch is not imported.

Shapes: R rewards, P prompts, G answers to each, T tokens of an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ..advantages import advantages, normalise_each, returns
from ..gae import whiten_answers
from .answer_table import AnswerTable, Records
from .answers import CUT, FIRST, OLD, REFERENCE
from .group_writer import GREEDY
from .totals import scores_of, total_of, weights_by_group

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .grpo_config import GrpoConfig


class Credit(AnswerTable):
    """Advantages of the tokens of an iteration's answers; a pure function of the records."""

    def __init__(self, records: Records, weights: Mapping[str, float], config: GrpoConfig) -> None:
        super().__init__(
            records,
            weights,
            config,
            compares=config.compares,
            each=config.normalise == "each",
            penalty=config.missing_eos_penalty,
        )
        self._config = config

    def tokens(self) -> list[NDArray[np.float64]]:
        """Return the advantage of each token of each answer, (T,) each."""
        answers, config = self._answers(), self._config
        found = [np.full(length, gained) for length, gained in zip(self.lengths, answers, strict=True)]
        if config.kl and config.kl_in == "returns":
            found = [gained - config.kl * returns(k1) for gained, k1 in zip(found, self._apart(), strict=True)]
        if config.scale != "tokens":
            return found
        learned = np.flatnonzero(self.is_learned)
        for number, white in zip(learned, whiten_answers([found[number] for number in learned]), strict=True):
            found[number] = white
        return found

    def weights(self) -> NDArray[np.float64]:
        """Return what a token of each answer counts in the loss, and what the answer counts in its denominator, (2, P·G).

        Their ratio says which mean it is: an answer of n tokens counts n tokens, one answer, ``max_new_tokens`` places, or a share of
        its prompt that is its share of the prompt's tokens.
        """
        lengths, one = np.maximum(self.lengths, 1), np.ones(len(self.lengths))
        match self._config.mean:
            case "token":
                return np.stack((one, lengths))
            case "answer":
                return np.stack((1 / lengths, one))
            case "constant":
                return np.stack((one, one * self._config.max_new_tokens))
            case "prompt":
                learned_PG = (self.lengths * self.is_learned).reshape(-1, self._config.group)
                of_prompt = np.maximum(learned_PG.sum(1), 1).repeat(self._config.group)
                return np.stack((1 / of_prompt, lengths / of_prompt))

    def figures(self) -> dict[str, float]:
        """See ``AnswerTable``, with the share of prompts that were answered again."""
        figures = super().figures()
        if self._config.resample:
            figures["groups_resampled"] = float(np.mean([FIRST in record for record in self._records]))
        return figures

    def _answers(self) -> NDArray[np.float64]:
        """Return the advantage of each answer, 0 for one without a score, (P·G,)."""
        config = self._config
        scale = "none" if config.scale == "tokens" else config.scale
        if config.normalise == "each":
            scores_RPG = np.stack([self._grouped(scores_of(self._records, name)) for name in self._weights])
            weights_R = np.array(list(self._weights.values()))
            return normalise_each(scores_RPG, weights_R, baseline=config.baseline, scale=scale).reshape(-1)
        rewards = self.credited
        if config.kl and config.kl_in == "reward":
            rewards = rewards - config.kl * np.array([k1.sum() for k1 in self._apart()])
        greedy = self._greedy_totals()
        return advantages(self._grouped(rewards), baseline=config.baseline, scale=scale, greedy_P=greedy).reshape(-1)

    def _apart(self) -> list[NDArray[np.float64]]:
        """Return k1 of each token of each answer: log π_old - log π_ref."""
        return [np.array(record[OLD]) - np.array(record[REFERENCE]) for record in self._records]

    def _greedy_totals(self) -> NDArray[np.float64] | None:
        if self._config.baseline != "greedy":
            return None
        first = self._records[:: self._config.group]
        greedy, weights = [record[GREEDY] for record in first], weights_by_group(self._records, self._weights)
        of_prompts = [weights[record["group"]] for record in first]
        totals = np.array([total_of(each["rewards"], own) for each, own in zip(greedy, of_prompts, strict=True)])
        return totals - self._config.missing_eos_penalty * np.array([each["finish"] in CUT for each in greedy])

    def _grouped(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return values.reshape(-1, self._config.group)
