"""Learning from rewards without a critic: several answers to each prompt, each compared with the others (GRPO and its kin).

Shapes: B rows, T tokens, D model width, n trained tokens, A documents of the batch; P prompts, G answers to each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from mt_core import Sample
from mt_core.nn import Batch, LossSums, token_logprobs

from ..advantages import importance_weights
from ..kl import estimate_kl
from ..policy import MOST, answer_ratios, are_far, cispo_loss, clipped_loss, ratios, soft_loss
from .answers import OLD, REFERENCE, SAMPLED, Record
from .credit import Credit
from .group_writer import GroupWriter, refuse_other_records
from .online import OnlineObjective, sample_of

if TYPE_CHECKING:
    from mt_core import Template, Tokenizer
    from mt_train import Policy, Prompt

    from ..reward_functions.base import Reward
    from ..samplers.base import Sampler
    from .grpo_config import GrpoConfig

ADVANTAGE, IMPORTANCE = "advantage", "importance"
"""Values of tokens beside ``OLD`` and ``REFERENCE``."""
WEIGHT, COUNT = "weight", "count"
"""Values of an answer: what a token of it counts in the loss, and what it counts in the denominator."""
UNITS = {"token": "per token", "answer": "per answer", "constant": "per place of an answer", "prompt": "per prompt"}


class GrpoObjective(OnlineObjective):
    """Rows with prompts. The trainer collects answers and has them scored; the loss is that of their tokens."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: Template,
        config: GrpoConfig,
        rewards: Mapping[str, Reward],
        sampler: Sampler | None = None,
    ) -> None:
        writer = GroupWriter(config, rewards, sampler, tokenizer, template)
        super().__init__(tokenizer, template, config, rewards, sampler, writer=writer)
        self._config = config
        self.loss_unit = UNITS[config.mean]

    # ------------------------------------------------------------------------------------------------------- collecting

    def collect(
        self, prompts: Sequence[Prompt], policy: Policy, *, seed: int, previous: Sequence[Mapping[str, Any]]
    ) -> list[Record]:
        """Answers to each prompt with their scores. Raises ``ComponentError`` for a sampler or a reward that fails."""
        records, watch = self._writer.write(prompts, policy, seed=seed), self._writer.watch
        if self._config.measures_old:
            with watch.measure("measure"):
                found = policy.measure([sample_of(record) for record in records], self._logprobs)
            for record, values in zip(records, found, strict=True):
                record[OLD] = values[OLD].tolist()
        if self._config.kl:
            with watch.measure("measure"):
                found = policy.measure([sample_of(record) for record in records], self._logprobs, view="reference")
            for record, values in zip(records, found, strict=True):
                record[REFERENCE] = values[OLD].tolist()
        return records

    def _logprobs(self, hidden: Tensor, head: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Log-probabilities of the trained tokens at the temperature at which they were drawn."""
        hidden_nD, labels_n = batch.select_trained(hidden)
        return {OLD: token_logprobs(head, hidden_nD, labels_n, temperature=self._config.temperature)[0]}

    def learn(self, records: Sequence[Mapping[str, Any]]) -> tuple[list[Sample], dict[str, float]]:
        """Samples with their advantages, without answers that have no score, or are masked; figures of the iteration."""
        refuse_other_records(records, self._config, self._writer.weights)
        credit = Credit(records, self._writer.weights, self._config)
        figures = credit.figures()
        gained, weights_2A = credit.tokens(), credit.weights()
        samples = []
        for number in np.flatnonzero(credit.is_learned).tolist():
            record, values = records[number], {ADVANTAGE: gained[number].tolist()}
            values |= {name: record[name] for name in (OLD, REFERENCE) if name in record}
            if self._config.importance != "none":
                values[IMPORTANCE] = self._importance(record).tolist()
            weight, count = weights_2A[:, number].tolist()
            samples.append(sample_of(record, values, {WEIGHT: [weight], COUNT: [count]}))
        if self._config.importance != "none":
            figures |= _sampler_figures(records)
        return samples, figures

    def _importance(self, record: Mapping[str, Any]) -> Any:
        config = self._config
        bounds = {"low": config.importance_low, "high": config.importance_high}
        return importance_weights(
            np.array(record[OLD]), np.array(record[SAMPLED]), drop=config.importance == "icepop", **bounds
        )

    # --------------------------------------------------------------------------------------------------------- learning

    def count(self, batch: Batch) -> float:
        """Return the tokens, the answers, the places that answers could have, or the prompts."""
        return float(self._count(batch))

    def _count(self, batch: Batch) -> Tensor:
        """Return the count on the device of the batch, which nobody has to wait for; ranks that share rows count them once."""
        if COUNT not in batch.documents or not batch.counts_items:
            return torch.zeros((), device=batch.labels.device)
        return batch.documents[COUNT].sum()

    def loss(self, hidden: Tensor, head: nn.Module, batch: Batch) -> LossSums:
        """Sum over the tokens of the batch; see ``Objective``."""
        hidden_nD, labels_n = batch.select_trained(hidden)
        logps_n, entropy_n = token_logprobs(
            head, hidden_nD, labels_n, temperature=self._config.temperature, entropy=True
        )
        assert entropy_n is not None, "it was asked for"
        index_n = batch.index_n()
        values = {name: each.reshape(-1)[index_n] for name, each in batch.tokens.items()}
        gained_n = values.get(ADVANTAGE, torch.zeros_like(logps_n))
        ratios_n = self._ratios(logps_n, values.get(OLD, logps_n.detach()), batch)
        losses_n = self._losses(ratios_n, logps_n, gained_n) * values.get(IMPORTANCE, 1.0)
        figures = self._shares(ratios_n, gained_n) | {"entropy": entropy_n}
        if self._config.kl:
            reference_n = values.get(REFERENCE, logps_n.detach())
            figures["kl"] = estimate_kl(logps_n, reference_n, "k3")
            if self._config.kl_in == "loss":
                costs_n = self._config.kl * estimate_kl(logps_n, reference_n, self._config.estimator)
                losses_n, figures["kl_loss"] = losses_n + costs_n, costs_n
        if self._config.entropy_weight:
            losses_n = losses_n - self._config.entropy_weight * entropy_n
        if WEIGHT in batch.documents:
            losses_n = losses_n * batch.documents[WEIGHT][batch.document_n()]
        tokens = torch.tensor(float(len(labels_n)), device=hidden.device)
        sums = {name: (each.detach().float().sum(), tokens) for name, each in figures.items()}
        return LossSums(losses_n.sum(), self._count(batch), sums)

    def _ratios(self, logps_n: Tensor, old_n: Tensor, batch: Batch) -> Tensor:
        """Return the ratios of tokens, or for each the one of its answer."""
        loss = self._config.loss
        if loss in ("clip", "cispo", "soft"):
            return ratios(logps_n, old_n)
        return answer_ratios(logps_n, old_n, batch.document_n(), batch.document_sums, whole=loss == "whole")

    def _losses(self, ratios_n: Tensor, logps_n: Tensor, gained_n: Tensor) -> Tensor:
        config = self._config
        if config.loss == "cispo":
            return cispo_loss(ratios_n, logps_n, gained_n, low=config.clip_low, high=config.clip_high)
        if config.loss == "soft":
            return soft_loss(ratios_n, gained_n, positive=config.soft_positive, negative=config.soft_negative)
        return clipped_loss(ratios_n, gained_n, low=config.clip_low, high=config.clip_high, dual=config.dual_clip)

    def _shares(self, ratios_n: Tensor, gained_n: Tensor) -> dict[str, Tensor]:
        """Return the ratios, and which of them were held, or are far from 1."""
        is_low, is_high = ratios_n < 1 - self._config.clip_low, ratios_n > 1 + self._config.clip_high
        if self._config.loss == "soft":  # which has no bounds
            is_low = is_high = torch.zeros_like(is_low)
        elif self._config.loss != "cispo":  # which holds a weight, whatever its token gained
            is_low, is_high = is_low & (gained_n < 0), is_high & (gained_n > 0)
        return {"clipped_low": is_low, "clipped_high": is_high, "ratio": ratios_n, "ratio_far": are_far(ratios_n)}


def _sampler_figures(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return how much likelier tokens are for the trainer than for the sampler: the mean, and the most."""
    apart = [np.array(record[OLD]) - np.array(record[SAMPLED]) for record in records]
    found = np.exp(np.concatenate([[0.0], *apart]).clip(-MOST, MOST))[1:]
    return {
        "sampler_ratio": float(found.mean() if len(found) else 1.0),
        "sampler_ratio_most": float(found.max(initial=0)),
    }
