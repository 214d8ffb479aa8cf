"""Advantages of answers: how much better an answer, or a token of it, is than what was to be expected, in float64. Torch is not imported.

Shapes: P prompts, G answers to each, R rewards, T tokens of an answer, N tokens of all answers. NaN stands for an answer without a score,
which gets 0 and counts for nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from .policy import MOST

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Baseline = Literal["group", "others", "greedy", "none"]
Scale = Literal["group", "batch", "none"]
SMALLEST = 1e-4
"""Added to a deviation, as TRL does."""
SMALLEST_SQUARE = 1e-8
"""Added to a variance, as verl does."""


def advantages(
    rewards_PG: NDArray[np.float64], *, baseline: Baseline, scale: Scale, greedy_P: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Return (P, G) advantages.

    ``baseline`` is the mean of the group, of the other answers in it (RLOO, https://arxiv.org/abs/2402.14740), the reward of the greedy
    answer to the prompt (``greedy_P``; ReMax, https://arxiv.org/abs/2310.10505), or 0. ``scale`` divides by the unbiased standard
    deviation of the group (GRPO, https://arxiv.org/abs/2402.03300), of all answers, or by nothing (Dr. GRPO,
    https://arxiv.org/abs/2503.20783). Where answers are compared with each other, a group with fewer than two scores has the advantage 0.
    """
    import numpy as np

    has_score = ~np.isnan(rewards_PG)
    apart = _above_baseline(rewards_PG, has_score, baseline, greedy_P)
    if scale == "none":
        return apart
    if scale == "group":
        centred_PG, count_P1 = _center_groups(rewards_PG, has_score)
        squares_P1 = (centred_PG**2).sum(1, keepdims=True)
        deviation: NDArray[np.float64] = np.sqrt(squares_P1 / np.maximum(count_P1 - 1, 1))
    else:
        scored = rewards_PG[has_score]
        deviation = np.full((len(rewards_PG), 1), scored.std(ddof=1) if len(scored) > 1 else 0.0)
    return apart / (deviation + SMALLEST)


def _above_baseline(
    rewards_PG: NDArray[np.float64],
    has_score: NDArray[np.bool_],
    baseline: Baseline,
    greedy_P: NDArray[np.float64] | None,
) -> NDArray[np.float64]:
    """Return rewards less their baseline, 0 where there is no score or no baseline."""
    import numpy as np

    if baseline == "none":
        return np.where(has_score, rewards_PG, 0.0)
    if baseline == "greedy":
        assert greedy_P is not None, "the baseline is a reward of greedy answers"
        return np.nan_to_num(rewards_PG - greedy_P[:, None], nan=0.0)
    centred_PG, count_P1 = _center_groups(rewards_PG, has_score)
    apart: NDArray[np.float64] = np.where(count_P1 > 1, centred_PG, 0.0)
    return apart * count_P1 / np.maximum(count_P1 - 1, 1) if baseline == "others" else apart


def _center_groups(
    rewards_PG: NDArray[np.float64], has_score: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return rewards less the mean of their group, (P, G), 0 where there is no score, and the number of scores of a group, (P, 1)."""
    import numpy as np

    filled_PG = np.where(has_score, rewards_PG, 0.0)
    count_P1 = has_score.sum(1, keepdims=True)
    mean_P1 = filled_PG.sum(1, keepdims=True) / np.maximum(count_P1, 1)
    return np.where(has_score, filled_PG - mean_P1, 0.0), count_P1


def normalise_each(
    scores_RPG: NDArray[np.float64], weights_R: NDArray[np.float64], *, baseline: Baseline, scale: Scale
) -> NDArray[np.float64]:
    """Return (P, G) advantages: those of each reward by itself, their weighted sum, whitened over all answers.

    A reward whose numbers spread more does not drown the others then (GDPO, https://arxiv.org/abs/2601.05242). A score that is missing
    in a reward that counts makes the answer one without a score, but a reward that scores none of several answers to a prompt, where
    another does, adds nothing there.
    """
    import numpy as np

    counted = weights_R != 0
    missing_RPG = np.isnan(scores_RPG[counted])
    scores_none_RP1 = missing_RPG.all(2, keepdims=True)
    if scores_RPG.shape[2] > 1:  # as ``weights_by_group`` leaves such rewards out of the sums
        missing_RPG &= ~scores_none_RP1 | scores_none_RP1.all(0)
    missing_PG = missing_RPG.any(0)
    total_PG = np.zeros(scores_RPG.shape[1:])
    for number in np.flatnonzero(counted):
        own_PG = np.where(missing_PG, np.nan, scores_RPG[number])
        total_PG += weights_R[number] * advantages(own_PG, baseline=baseline, scale=scale)
    known = total_PG[~missing_PG]
    if len(known) < 2:
        return np.zeros_like(total_PG)
    return np.where(missing_PG, 0.0, (total_PG - known.mean()) / (known.std(ddof=1) + SMALLEST))


def returns(rewards_T: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for each token the sum of its reward and of all behind it, (T,)."""
    return rewards_T[::-1].cumsum()[::-1]


def whiten(values_N: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return values with mean 0 and deviation 1 (unbiased), as REINFORCE++ does with those of all tokens
    (https://arxiv.org/abs/2501.03262); 0 for one alone."""
    import numpy as np

    if len(values_N) < 2:
        return np.zeros_like(values_N)
    centred: NDArray[np.float64] = (values_N - values_N.mean()) / np.sqrt(values_N.var(ddof=1) + SMALLEST_SQUARE)
    return centred


def importance_weights(
    old_T: NDArray[np.float64], sampled_T: NDArray[np.float64], *, low: float, high: float, drop: bool
) -> NDArray[np.float64]:
    """Return how much likelier each token is for the trainer than for the sampler that drew it, (T,), held within bounds.

    What is above ``high`` counts ``high`` (truncated importance sampling, https://fengyao.notion.site/off-policy-rl); with ``drop``
    a token outside [``low``, ``high``] counts nothing (IcePop, https://arxiv.org/abs/2510.18855).
    """
    import numpy as np

    weights_T: NDArray[np.float64] = np.exp(np.clip(old_T - sampled_T, -MOST, MOST))
    if drop:
        return np.where((weights_T >= low) & (weights_T <= high), weights_T, 0.0)
    return np.minimum(weights_T, high)
