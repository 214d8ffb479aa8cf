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
from mt_core.generation import Generation, GenerationConfig, SamplingRules
from mt_core.nn import Batch, LossSums, TokenObjective, token_logprobs

from ..advantages import advantages
from ..answer_figures import CUT, answer_figures
from ..policy import clipped_loss, ratios
from ..reward_functions.base import Answer
from ..scores import score_answers
from ..stopwatch import Stopwatch
from .shapes import read_prompt

if TYPE_CHECKING:
    from mt_core import Template, Tokenizer
    from mt_train import Policy, Prompt, Record

    from ..reward_functions.base import Reward
    from .config import GrpoConfig

ADVANTAGE, OLD = "advantage", "old"


class GrpoObjective(TokenObjective):
    """Rows with prompts. The trainer collects answers and has them scored; the loss is that of their tokens."""

    def __init__(
        self, tokenizer: Tokenizer, template: Template, config: GrpoConfig, rewards: Mapping[str, Reward]
    ) -> None:
        super().__init__(pad_id=tokenizer.pad_id or 0)
        self._template, self._config, self._rewards = template, config, dict(rewards)
        self._tokenizer, self._watch = tokenizer, Stopwatch()
        self._weights = {name: weight_of(each) for name, each in rewards.items()}
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
        """Answers to each prompt with their scores. Raises ``ComponentError`` for a reward that fails."""
        config = self._config
        asked = [prompt for prompt in prompts for _ in range(config.group)]
        rules = SamplingRules(temperature=config.temperature)
        self._watch.clear()
        with self._watch.measure("write"):
            drawn = policy.generate(
                [prompt.ids for prompt in asked],
                GenerationConfig(rules=rules, max_new_tokens=config.max_new_tokens, seed=seed),
                weights="auto",
            )
        answers = [
            Answer(each.text, _ids(each), each.finish, prompt.row, number // config.group)
            for number, (prompt, each) in enumerate(zip(asked, drawn, strict=True))
        ]
        with self._watch.measure("score"):
            scores = score_answers(self._rewards, answers)
        texts = [self._tokenizer.decode(list(prompt.ids)) for prompt in prompts]
        records: list[dict[str, Any]] = [
            {
                "row_id": prompt.row["id"],
                "group": answer.group,
                "prompt": list(prompt.ids),
                "prompt_text": texts[answer.group],
                "ids": list(answer.ids),
                "text": answer.text,
                "finish": answer.finish,
                "rewards": {name: scores[name][number] for name in scores},
            }
            for number, (prompt, answer) in enumerate(zip(asked, answers, strict=True))
        ]
        for record in records:  # for readers of the file: what is learned from follows from the scores
            total = total_of(record["rewards"], self._weights)
            record["reward"] = None if math.isnan(total) else total
        if config.updates * config.passes > 1:  # with one step the policy of the step is the one that drew
            with self._watch.measure("measure"):
                found = policy.measure([_sample(record) for record in records], self._logprobs)
            for record, values in zip(records, found, strict=True):
                record[OLD] = values[OLD].tolist()
        return records

    def _logprobs(self, hidden: Tensor, head: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """(B, T, D) -> (n,): how likely each token of an answer is, at the temperature that it was drawn at."""
        hidden_nD, labels_n = batch.select_trained(hidden)
        return {OLD: token_logprobs(head, hidden_nD, labels_n, temperature=self._config.temperature)[0]}

    @property
    def seconds(self) -> Mapping[str, float]:
        """Return what parts of the last ``collect`` took (seconds)."""
        return self._watch.seconds

    def learn(self, records: Sequence[Mapping[str, Any]]) -> tuple[list[Sample], dict[str, float]]:
        """Samples with their advantages, without answers that have no score, or are masked; figures of the iteration."""
        config = self._config
        totals = np.array([total_of(record["rewards"], self._weights) for record in records])
        rewards_PG = totals.reshape(-1, config.group)
        gained_PG = advantages(rewards_PG, baseline=config.baseline, scale=config.scale)
        is_cut = np.array([record["finish"] in CUT for record in records])
        learned = ~np.isnan(totals) & ~(is_cut & (config.truncated == "mask"))
        samples = [
            _sample(record, advantage)
            for record, advantage, wanted in zip(records, gained_PG.ravel().tolist(), learned.tolist(), strict=True)
            if wanted
        ]
        return samples, answer_figures(records, totals, rewards=self._rewards, group=config.group)

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


def _ids(drawn: Generation) -> list[int]:
    """The tokens of an answer, with the one that ended it."""
    return [*drawn.ids, *([] if drawn.end_id is None else [drawn.end_id])]


def _sample(record: Mapping[str, Any], advantage: float = 0.0) -> Sample:
    prompt, ids = record["prompt"], record["ids"]
    values = {OLD: [*(0.0 for _ in prompt), *record[OLD]]} if OLD in record else {}
    trained = [False] * len(prompt) + [True] * len(ids)
    return Sample([*prompt, *ids], trained, record["row_id"], None, (), {ADVANTAGE: [advantage]}, values)
