"""Metrics of held-out tokens: how likely the model found each, and what it would have said."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pydantic import Field

from mt_core import MtConfig, Sample
from mt_core.evaluation import TokenValues

_MOST_NATS = 700
"""exp of more is no float."""


def target_ids(sample: Sample) -> list[int]:
    """Return the trained tokens of a sample that have values: the first token has none."""
    return [int(token) for token, trained in list(zip(sample.ids, sample.trained, strict=True))[1:] if trained]


def target_weights(sample: Sample) -> list[float]:
    """Return how often each of these counts."""
    weights = [1.0] * len(sample.ids) if sample.weights is None else list(sample.weights)
    return [float(weight) for weight, trained in list(zip(weights, sample.trained, strict=True))[1:] if trained]


class TokenLoss:
    """Loss as training has it (a token counts as often as its weight says), and its exponential."""

    top = 1
    signature = "nats per trained token"

    def score_tokens(self, sample: Sample, values: TokenValues) -> Mapping[str, float]:
        """Return nats and weights of a sample."""
        weights = target_weights(sample)
        nats = math.fsum(-float(value) * weight for value, weight in zip(values.logprobs, weights, strict=True))
        return {"nats": nats, "weight": math.fsum(weights)}

    def total_tokens(self, scores: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
        """Return loss and perplexity over all samples."""
        loss = math.fsum(each["nats"] for each in scores) / math.fsum(each["weight"] for each in scores)
        return {"loss": loss} if loss > _MOST_NATS else {"loss": loss, "perplexity": math.exp(loss)}


class TokenAccuracyConfig(MtConfig):
    """Options of the accuracy of tokens."""

    k: int = Field(
        5, ge=1, le=100, description="a token counts as found among so many likeliest ones, for top-k accuracy"
    )


class TokenAccuracy:
    """Share of the tokens that are the likeliest one at their place, and that are among the k likeliest."""

    def __init__(self, config: TokenAccuracyConfig) -> None:
        self.top = config.k
        self.signature = f"share of trained tokens; top {config.k}"

    def score_tokens(self, sample: Sample, values: TokenValues) -> Mapping[str, float]:
        """Return how many tokens of a sample were found."""
        wanted = target_ids(sample)
        best = values.top_ids[:, : self.top].tolist()
        first = sum(token == ids[0] for token, ids in zip(wanted, best, strict=True))
        among = sum(token in ids for token, ids in zip(wanted, best, strict=True))
        return {"first": first, "among": among, "tokens": len(wanted)}

    def total_tokens(self, scores: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
        """Return the shares over all samples."""
        first, among, tokens = (sum(each[name] for each in scores) for name in ("first", "among", "tokens"))
        top = {} if self.top == 1 else {f"top{self.top}_accuracy": among / tokens}
        return {"token_accuracy": first / tokens, **top}
