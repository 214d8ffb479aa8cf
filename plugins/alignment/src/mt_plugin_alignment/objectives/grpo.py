"""Learning from rewards without a critic: several answers to each prompt, each compared with the others (GRPO and its kin).

Shapes: B rows, T tokens, D model width, n trained tokens, A documents of the batch; P prompts, G answers to each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from mt_core import Row, Sample
from mt_core.generation import GenerationConfig, SamplingRules
from mt_core.nn import Batch, LossSums, TokenObjective, token_logprobs

from ..advantages import advantages
from ..policy import clipped_loss, ratios
from ..reward_functions.base import Answer
from ..samplers.answers import write_answers
from ..scores import score_answers
from .shapes import read_prompt

if TYPE_CHECKING:
    from mt_core import Template, Tokenizer
    from mt_train import Policy, Prompt, Record

    from ..reward_functions.base import Reward
    from ..samplers.base import Sampler
    from .config import GrpoConfig

ADVANTAGE, OLD = "advantage", "old"
CUT = ("length", "context")
"""Ends of an answer that is not finished."""


class GrpoObjective(TokenObjective):
    """Rows with prompts. The trainer collects answers and has them scored; the loss is that of their tokens."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: Template,
        config: GrpoConfig,
        rewards: Mapping[str, Reward],
        sampler: Sampler | None = None,
    ) -> None:
        super().__init__(pad_id=tokenizer.pad_id or 0)
        self._template, self._config, self._rewards, self._sampler = template, config, dict(rewards), sampler
        self.prompts, self.updates, self.passes = config.prompts, config.updates, config.passes
        self.max_new_tokens, self.replay = config.max_new_tokens, config.replay
        self.loss_unit = {"token": "per token", "answer": "per answer", "constant": "per place of an answer"}[
            config.mean
        ]

    def encode(self, row: Row) -> Sample:
        """The prompt of a row. Raises ``DataError`` for a row without one."""
        ids = self._template.prompt(read_prompt(row))
        return Sample(ids, [False] * len(ids), row["id"])

    # ------------------------------------------------------------------------------------------------------- collecting

    def collect(
        self, prompts: Sequence[Prompt], policy: Policy, *, seed: int, previous: Sequence[Record]
    ) -> list[dict[str, Any]]:
        """Answers to each prompt with their scores. Raises ``ComponentError`` for a sampler or a reward that fails."""
        config = self._config
        asked = [prompt for prompt in prompts for _ in range(config.group)]
        rules = SamplingRules(temperature=config.temperature)
        drawn = write_answers(
            self._sampler,
            policy,
            [prompt.ids for prompt in asked],
            GenerationConfig(rules=rules, max_new_tokens=config.max_new_tokens, seed=seed),
        )
        answers = [
            Answer(each.text, each.ids, each.finish, prompt.row, number // config.group)
            for number, (prompt, each) in enumerate(zip(asked, drawn, strict=True))
        ]
        scores = score_answers(self._rewards, answers)
        records: list[dict[str, Any]] = [
            {
                "row_id": prompt.row["id"],
                "group": answer.group,
                "prompt": list(prompt.ids),
                "ids": list(answer.ids),
                "text": answer.text,
                "finish": answer.finish,
                "rewards": {name: scores[name][number] for name in scores},
            }
            for number, (prompt, answer) in enumerate(zip(asked, answers, strict=True))
        ]
        if config.updates * config.passes > 1:  # with one step the policy of the step is the one that drew
            found = policy.measure([_sample(record) for record in records], self._logprobs)
            for record, values in zip(records, found, strict=True):
                record[OLD] = values[OLD].tolist()
        return records

    def _logprobs(self, hidden: Tensor, head: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """(B, T, D) -> (n,): how likely each token of an answer is, at the temperature that it was drawn at."""
        hidden_nD, labels_n = batch.select_trained(hidden)
        return {OLD: token_logprobs(head, hidden_nD, labels_n, temperature=self._config.temperature)[0]}

    def learn(self, records: Sequence[Mapping[str, Any]]) -> tuple[list[Sample], dict[str, float]]:
        """Samples with their advantages, without answers that have no score, or are masked; figures of the iteration."""
        config, weights = self._config, {name: weight_of(each) for name, each in self._rewards.items()}
        totals = np.array([total_of(record["rewards"], weights) for record in records])
        rewards_PG = totals.reshape(-1, config.group)
        gained_PG = advantages(rewards_PG, baseline=config.baseline, scale=config.scale)
        is_cut = np.array([record["finish"] in CUT for record in records])
        learned = ~np.isnan(totals) & ~(is_cut & (config.truncated == "mask"))
        samples = [
            _sample(record, advantage)
            for record, advantage, wanted in zip(records, gained_PG.ravel().tolist(), learned.tolist(), strict=True)
            if wanted
        ]
        lengths = [len(record["ids"]) for record in records]
        has_spread = np.array(
            [np.ptp(group[~np.isnan(group)]) > 0 if (~np.isnan(group)).any() else False for group in rewards_PG]
        )
        figures = {"reward": _mean(totals)}
        for name in self._rewards:
            figures[f"reward_{name.replace('-', '_')}"] = _mean(_numbers(record["rewards"][name] for record in records))
        figures |= {
            "groups_alike": float(1 - has_spread.mean()),
            "answer_tokens": float(np.mean(lengths)),
            "answer_tokens_most": float(max(lengths)),
            "answers_cut": float(is_cut.mean()),
            "answers_unscored": float(np.isnan(totals).mean()),
        }
        return samples, figures

    # --------------------------------------------------------------------------------------------------------- learning

    def count(self, batch: Batch) -> float:
        """Return the tokens, the answers, or all places that answers could have."""
        return float(self._count(batch))

    def _count(self, batch: Batch) -> Tensor:
        """Return the count on the device of the batch, which nobody has to wait for."""
        if self._config.mean == "token":
            return torch.tensor(float(batch.trained_tokens), device=batch.labels.device)
        has_token_A = torch.zeros(batch.document_count, device=batch.labels.device)
        has_token_A[batch.document_n()] = float(batch.counts_items)
        return has_token_A.sum() * (self._config.max_new_tokens if self._config.mean == "constant" else 1)

    def loss(self, hidden: Tensor, head: nn.Module, batch: Batch) -> LossSums:
        """Sum over the tokens of the batch; see ``Objective``."""
        config = self._config
        hidden_nD, labels_n = batch.select_trained(hidden)
        logps_n, entropy_n = token_logprobs(head, hidden_nD, labels_n, temperature=config.temperature, entropy=True)
        assert entropy_n is not None, "it was asked for"
        document_n = batch.document_n()
        gained_n = batch.documents[ADVANTAGE][document_n] if ADVANTAGE in batch.documents else torch.zeros_like(logps_n)
        old_n = logps_n.detach() if OLD not in batch.tokens else batch.tokens[OLD].reshape(-1)[batch.index_n()]
        ratios_n = ratios(logps_n, old_n)
        losses_n = clipped_loss(ratios_n, gained_n, low=config.clip_low, high=config.clip_high)
        if config.mean == "answer":
            lengths_A = batch.document_sums(torch.ones_like(logps_n))
            losses_n = losses_n / lengths_A[document_n]
        tokens = torch.tensor(float(len(labels_n)), device=hidden.device)
        with torch.no_grad():
            clipped_low = (ratios_n < 1 - config.clip_low) & (gained_n < 0)
            clipped_high = (ratios_n > 1 + config.clip_high) & (gained_n > 0)
            shares = {"clipped_low": clipped_low, "clipped_high": clipped_high, "entropy": entropy_n, "ratio": ratios_n}
            figures = {name: (each.float().sum(), tokens) for name, each in shares.items()}
        return LossSums(losses_n.sum(), self._count(batch), figures)


def weight_of(reward: Reward) -> float:
    """Return what a reward counts in the sum; 1 where it does not say."""
    return float(getattr(reward, "weight", 1.0))


def total_of(scores: Mapping[str, float | None], weights: Mapping[str, float]) -> float:
    """Return the weighted sum of an answer's scores; NaN where one that counts is missing."""
    counted = [(weight, scores[name]) for name, weight in weights.items() if weight]
    return (
        math.nan
        if any(score is None for _, score in counted)
        else sum(weight * (score or 0.0) for weight, score in counted)
    )


def _sample(record: Mapping[str, Any], advantage: float = 0.0) -> Sample:
    prompt, ids = record["prompt"], record["ids"]
    values = {OLD: [*(0.0 for _ in prompt), *record[OLD]]} if OLD in record else {}
    trained = [False] * len(prompt) + [True] * len(ids)
    return Sample([*prompt, *ids], trained, record["row_id"], None, (), {ADVANTAGE: [advantage]}, values)


def _numbers(scores: Any) -> Any:
    return np.array([math.nan if score is None else score for score in scores])


def _mean(values: Any) -> float:
    """The mean of what is there; 0 for nothing."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else 0.0
