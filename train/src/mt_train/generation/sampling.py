"""Choice of the next token from logits. Pure functions, each equal to the rule of the same name in transformers.

They are applied in the order of transformers: penalties and bars, the choices, then temperature, top-k, top-p, min-p
and typical.

Shapes: B rows, T tokens so far, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite

import torch
from torch import Generator, Tensor

from mt_core.errors import MtError
from mt_core.generation import SamplingRules
from mt_train.generation.history import History, adjust


def scale_temperature(logits_BV: Tensor, temperature: float) -> Tensor:
    """Divide logits by the temperature: below 1 sharper, above 1 flatter."""
    return logits_BV / temperature


def keep_top_k(logits_BV: Tensor, k: int) -> Tensor:
    """All but the k highest at minus infinity; ties with the k-th stay."""
    lowest_B1 = torch.topk(logits_BV, min(k, logits_BV.shape[-1])).values[:, -1:]
    return logits_BV.masked_fill(logits_BV < lowest_B1, -torch.inf)


def keep_top_p(logits_BV: Tensor, p: float) -> Tensor:
    """The smallest set of tokens whose probabilities reach p (https://arxiv.org/abs/1904.09751); one at least."""
    ascending_BV, order_BV = torch.sort(logits_BV)
    removed_BV = ascending_BV.softmax(-1).cumsum(-1) <= 1 - p
    removed_BV[:, -1] = False
    return logits_BV.masked_fill(removed_BV.scatter(1, order_BV, removed_BV), -torch.inf)


def keep_min_p(logits_BV: Tensor, p: float) -> Tensor:
    """Tokens at least p times as likely as the likeliest (https://arxiv.org/abs/2407.01082)."""
    probabilities_BV = logits_BV.softmax(-1)
    return logits_BV.masked_fill(probabilities_BV < p * probabilities_BV.amax(-1, keepdim=True), -torch.inf)


def keep_typical(logits_BV: Tensor, mass: float) -> Tensor:
    """The tokens whose surprise is nearest to the entropy, until they have ``mass`` (https://arxiv.org/abs/2202.00666)."""
    log_BV = logits_BV.log_softmax(-1)
    entropy_B1 = -(log_BV * log_BV.exp()).nansum(-1, keepdim=True)  # 0 · log 0 is 0
    distance_BV, order_BV = torch.sort((-log_BV - entropy_B1).abs())
    below_BV = logits_BV.gather(1, order_BV).softmax(-1).cumsum(-1) < mass
    last_B1 = below_BV.sum(-1, keepdim=True).clamp(max=logits_BV.shape[-1] - 1)
    removed_BV = distance_BV > distance_BV.gather(1, last_B1)
    removed_BV[:, 0] = False
    return logits_BV.masked_fill(removed_BV.scatter(1, order_BV, removed_BV), -torch.inf)


def warp(logits_BV: Tensor, rules: SamplingRules) -> Tensor:
    """The rules that only a draw needs, in their order."""
    if rules.temperature != 1.0:
        logits_BV = scale_temperature(logits_BV, rules.temperature)
    if rules.top_k is not None:
        logits_BV = keep_top_k(logits_BV, rules.top_k)
    if rules.top_p is not None and rules.top_p < 1:
        logits_BV = keep_top_p(logits_BV, rules.top_p)
    if rules.min_p is not None:
        logits_BV = keep_min_p(logits_BV, rules.min_p)
    return logits_BV if rules.typical_p is None else keep_typical(logits_BV, rules.typical_p)


def choose(
    logits_BV: Tensor, history: History, rules: SamplingRules, generators: Sequence[Generator]
) -> list[int | MtError]:
    """The next token of each row, or why it has none. Row b draws from ``generators[b]`` alone, so its neighbours never change it."""
    logits_BV = adjust(logits_BV.float(), history, rules)
    faults = find_stuck_rows(logits_BV)
    tokens = draw(warp(logits_BV, rules), generators) if rules.draws else logits_BV.argmax(-1).tolist()
    return [faults.get(row, token) for row, token in enumerate(tokens)]


def draw(logits_BV: Tensor, generators: Sequence[Generator]) -> list[int]:
    """One token a row: the first whose cumulative probability exceeds a uniform number.

    The numbers come from the CPU, so a seed means the same on every device.
    """
    uniform_B1 = torch.stack([torch.rand(1, generator=generator, dtype=torch.float64) for generator in generators])
    cumulative_BV = logits_BV.double().softmax(-1).cumsum(-1)
    threshold_B1 = uniform_B1.to(logits_BV.device) * cumulative_BV[:, -1:]
    found_B1 = torch.searchsorted(cumulative_BV, threshold_B1, right=True)
    tokens: list[int] = found_B1[:, 0].clamp(max=logits_BV.shape[-1] - 1).tolist()
    return tokens


def find_stuck_rows(logits_BV: Tensor) -> dict[int, MtError]:
    """Return the rows for which no token can be chosen, each with the reason."""
    highest_B = logits_BV.amax(-1)
    if bool(highest_B.isfinite().all()):
        return {}
    return {row: _fault(highest) for row, highest in enumerate(highest_B.tolist()) if not isfinite(highest)}


def _fault(highest: float) -> MtError:
    if highest == -inf:
        return MtError("the rules bar every token of the vocabulary; raise no_repeat_ngram or lower max_new_tokens")
    return MtError("the model's logits are not finite numbers; its weights are broken, try an earlier checkpoint")
