"""PPO: learning from rewards with a critic, which says of each token what the answer is going to be worth.

https://arxiv.org/abs/1707.06347. Shapes: B rows, T tokens, D model width, n trained tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mt_core import Sample, UsageError
from mt_core.nn import Batch, LossSums, objective_modules, token_logprobs

from ..gae import estimate_advantages, explained_variance, next_beta, token_rewards, whiten_answers
from ..kl import estimate_kl
from ..policy import are_far, clipped_loss, ratios
from ..values import clip_values, value_loss
from .answer_table import AnswerTable
from .answers import OLD, REFERENCE, refuse_other_rewards
from .grpo import ADVANTAGE
from .online import OnlineObjective, sample_of

if TYPE_CHECKING:
    from mt_core import Template, Tokenizer
    from mt_train import Policy, Prompt, Record

    from ..reward_functions.base import Reward
    from ..samplers.base import Sampler
    from .ppo_config import PpoConfig

VALUE, RETURN, KL_WEIGHT = "value", "return", "kl_weight"


class PpoObjective(OnlineObjective):
    """Rows with prompts. The trainer collects answers, has them scored and measured; the loss is that of their tokens."""

    loss_unit = "per token"

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: Template,
        config: PpoConfig,
        rewards: Mapping[str, Reward],
        sampler: Sampler | None = None,
    ) -> None:
        super().__init__(tokenizer, template, config, rewards, sampler)
        self._config = config

    # ------------------------------------------------------------------------------------------------------- collecting

    def collect(
        self, prompts: Sequence[Prompt], policy: Policy, *, seed: int, previous: Sequence[Record]
    ) -> list[dict[str, Any]]:
        """Answers with their scores, and log-probability and value of each token. Raises ``ComponentError`` for a reward that fails."""
        config = self._config
        records = self._writer.write(prompts, policy, seed=seed)
        samples, beta = [sample_of(record) for record in records], self._next_beta(previous)
        with self._writer.watch.measure("measure"):
            measured = policy.measure(samples, self.measure_answers)
        for record, found in zip(records, measured, strict=True):
            record |= {name: found[name].tolist() for name in (OLD, VALUE)} | {KL_WEIGHT: beta}
        if config.kl:
            with self._writer.watch.measure("measure"):
                compared = policy.measure(samples, self.measure_reference, view="reference")
            for record, found in zip(records, compared, strict=True):
                record[REFERENCE] = found[REFERENCE].tolist()
        return records

    def measure_answers(self, hidden: Tensor, head: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Return the log-probability and the value of each trained token, (n,)."""
        hidden_nD, _ = batch.select_trained(hidden)
        return {OLD: self._logps(hidden, head, batch)[0], VALUE: _values(head, hidden_nD)}

    def measure_reference(self, hidden: Tensor, head: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Return the log-probability of each trained token, (n,), for the model of the start."""
        return {REFERENCE: self._logps(hidden, head, batch)[0]}

    def _next_beta(self, previous: Sequence[Record]) -> float:
        """Return β of an iteration, as that of the one before and how far its answers were from the reference say."""
        config = self._config
        if not previous or config.kl_target is None:
            return config.kl
        kl = float(np.mean([each.sum() for each in map(_divergence, previous)]))
        beta = float(previous[0][KL_WEIGHT])
        return next_beta(beta, kl, target=config.kl_target, horizon=config.kl_horizon, answers=len(previous))

    def _beta(self, record: Record) -> float:
        """Return β of an answer: that of its iteration where it is adapted."""
        return self._config.kl if self._config.kl_target is None else float(record[KL_WEIGHT])

    def _refuse_other_records(self, records: Sequence[Record]) -> None:
        """Raise ``UsageError`` for answers of another run that lack what is learned from."""
        needed = {OLD: "", VALUE: "", KL_WEIGHT: ""} | ({REFERENCE: ", with a kl above 0"} if self._config.kl else {})
        for name, options in needed.items():
            if any(name not in record for record in records):
                raise UsageError(
                    f"the answers of objective.replay have no {name!r}; replay a run of --objective ppo{options}"
                )
        refuse_other_rewards(records, self._writer.weights)

    def learn(self, records: Sequence[Record]) -> tuple[list[Sample], dict[str, float]]:
        """Samples with advantages and returns, without answers that have no score, or are masked; figures of the iteration."""
        self._refuse_other_records(records)
        config, weights = self._config, self._writer.weights
        table = AnswerTable(records, weights, config, compares=False, penalty=config.missing_eos_penalty)
        judged = [
            _ScoredRecord(records[number], float(table.credited[number]))
            for number in np.flatnonzero(table.is_learned).tolist()
        ]
        rewards = [token_rewards(score, _divergence(record), beta=self._beta(record)) for record, score in judged]
        values = [_tokens(record[VALUE]) for record, _ in judged]
        gained = estimate_advantages(rewards, values, gamma=config.gamma, lam=config.lam)
        returns = [gained_T + values_T for gained_T, values_T in zip(gained, values, strict=True)]
        samples = [
            sample_of(
                each.record, {ADVANTAGE: gained_T.tolist(), RETURN: returns_T.tolist(), **_old_values(each.record)}
            )
            for each, gained_T, returns_T in zip(
                judged, whiten_answers(gained) if config.whiten else gained, returns, strict=True
            )
        ]
        figures = table.figures() | self._divergence_figures(records)
        return samples, figures | {"explained_variance": explained_variance(values, returns)}

    def _divergence_figures(self, records: Sequence[Record]) -> dict[str, float]:
        """Return how far the answers of an iteration are from the reference, and what that costs."""
        if not self._config.kl:
            return {}
        apart = [_divergence(record) for record in records]
        apart_n = torch.from_numpy(np.concatenate(apart))
        each_n = estimate_kl(apart_n, torch.zeros_like(apart_n), "k3")  # that of grpo's figure of this name
        return {
            "kl": float(each_n.sum()) / max(len(each_n), 1),
            "kl_answer": float(apart_n.sum()) / len(apart),
            KL_WEIGHT: self._beta(records[0]),
        }

    # --------------------------------------------------------------------------------------------------------- learning

    def count(self, batch: Batch) -> float:
        """Return the tokens of answers: policy and critic are both means over these."""
        return float(batch.trained_tokens)

    def loss(self, hidden: Tensor, head: nn.Module, batch: Batch) -> LossSums:
        """Sum over the tokens of the batch; see ``Objective``."""
        config = self._config
        hidden_nD, labels_n = batch.select_trained(hidden)
        logps_n, entropy_n = self._logps(hidden, head, batch, entropy=True)
        assert entropy_n is not None, "it was asked for"
        values_n = _values(head, hidden_nD)
        gained_n, returns_n = (_given(batch, name, torch.zeros_like(logps_n)) for name in (ADVANTAGE, RETURN))
        old_n, old_values_n = _given(batch, OLD, logps_n), _given(batch, VALUE, values_n)
        ratios_n = ratios(logps_n, old_n)
        policy_n = clipped_loss(ratios_n, gained_n, low=config.clip_low, high=config.clip_high, dual=config.dual_clip)
        critic_n = value_loss(values_n, old_values_n, returns_n, clip=config.clip_value)
        losses_n = policy_n + config.value_weight * critic_n
        if config.entropy_weight:
            losses_n = losses_n - config.entropy_weight * entropy_n
        with torch.no_grad():
            shares = {
                "value_loss": critic_n,
                "entropy": entropy_n,
                "ratio": ratios_n,
                "ratio_far": are_far(ratios_n),
                "clipped_low": (ratios_n < 1 - config.clip_low) & (gained_n < 0),
                "clipped_high": (ratios_n > 1 + config.clip_high) & (gained_n > 0),
            }
            if config.clip_value is not None:
                clipped_n = clip_values(values_n, old_values_n, config.clip_value)
                shares["clipped_value"] = (clipped_n - returns_n).square() > (values_n - returns_n).square()
            tokens = torch.tensor(float(len(labels_n)), device=hidden.device)
            figures = {name: (each.float().sum(), tokens) for name, each in shares.items()}
        return LossSums(losses_n.sum(), tokens, figures)

    def _logps(
        self, hidden: Tensor, head: nn.Module, batch: Batch, *, entropy: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Return the log-probability of each trained token, and where it is asked for the entropy of its place."""
        hidden_nD, labels_n = batch.select_trained(hidden)
        return token_logprobs(head, hidden_nD, labels_n, temperature=self._config.temperature, entropy=entropy)


class _ScoredRecord(NamedTuple):
    """A record that is learned from, and the score of its answer."""

    record: Record
    score: float


def _values(head: nn.Module, hidden_nD: Tensor) -> Tensor:
    """Return what the critic says at each trained token, (n,)."""
    value_head = objective_modules(head)
    assert value_head is not None, "the component says which modules the trainer builds"
    values_n: Tensor = value_head(hidden_nD)
    return values_n


def _given(batch: Batch, name: str, unknown_n: Tensor) -> Tensor:
    """Return a value of each trained token, (n,); ``unknown_n`` where a batch has no sample."""
    return batch.tokens[name].reshape(-1)[batch.index_n()] if name in batch.tokens else unknown_n.detach()


def _old_values(record: Record) -> dict[str, Sequence[float]]:
    return {name: record[name] for name in (OLD, VALUE)}


def _divergence(record: Record) -> NDArray[np.float64]:
    """Return log π - log π_ref of each token of an answer (k1), (T,); 0 without a reference."""
    old_T = _tokens(record[OLD])
    return old_T - _tokens(record[REFERENCE]) if REFERENCE in record else np.zeros_like(old_T)


def _tokens(values: Iterable[float]) -> NDArray[np.float64]:
    return np.array(list(values), np.float64)
