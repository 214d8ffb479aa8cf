"""How the next token is chosen from logits. Pure functions, each equal to the rule of the same name in transformers.

Shapes: V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor


@dataclass(frozen=True, kw_only=True)
class SamplingRules:
    """``greedy`` takes the likeliest token; otherwise temperature, then top-k, then top-p."""

    greedy: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None


def scale_temperature(logits_V: Tensor, temperature: float) -> Tensor:
    """Below 1 sharper, above 1 flatter."""
    return logits_V / temperature


def keep_top_k(logits_V: Tensor, k: int) -> Tensor:
    """All but the k highest at minus infinity; ties with the k-th stay."""
    lowest = torch.topk(logits_V, min(k, logits_V.shape[-1])).values[-1]
    return logits_V.masked_fill(logits_V < lowest, -torch.inf)


def keep_top_p(logits_V: Tensor, p: float) -> Tensor:
    """The smallest set of tokens whose probabilities reach p (https://arxiv.org/abs/1904.09751); one at least."""
    ascending_V, order_V = torch.sort(logits_V)
    removed_V = ascending_V.softmax(-1).cumsum(-1) <= 1 - p
    removed_V[-1] = False
    return logits_V.masked_fill(removed_V.scatter(0, order_V, removed_V), -torch.inf)


def choose(logits_V: Tensor, rules: SamplingRules, generator: Generator) -> int:
    """The next token."""
    if rules.greedy:
        return int(logits_V.argmax())
    logits_V = scale_temperature(logits_V.float(), rules.temperature)
    if rules.top_k is not None:
        logits_V = keep_top_k(logits_V, rules.top_k)
    if rules.top_p is not None:
        logits_V = keep_top_p(logits_V, rules.top_p)
    return int(torch.multinomial(logits_V.softmax(-1), 1, generator=generator))
