"""Advantages of answers: how much better an answer is than others to the same prompt, in float64. Torch is not imported.

Shapes: P prompts, G answers to each; NaN stands for an answer without a score, which gets 0 and counts for nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Baseline = Literal["group", "others"]
Scale = Literal["group", "batch", "none"]
SMALLEST = 1e-4
"""Added to a deviation, as TRL does."""


def advantages(rewards_PG: NDArray[np.float64], *, baseline: Baseline, scale: Scale) -> NDArray[np.float64]:
    """Return (P, G) advantages.

    ``baseline`` is the mean of the group, or of the other answers in it (RLOO, https://arxiv.org/abs/2402.14740); ``scale`` divides by
    the unbiased standard deviation of the group (GRPO, https://arxiv.org/abs/2402.03300), of all answers, or by nothing
    (Dr. GRPO, https://arxiv.org/abs/2503.20783). A group with fewer than two scores has the advantage 0.
    """
    import numpy as np

    has_score = ~np.isnan(rewards_PG)
    count_P1 = has_score.sum(1, keepdims=True)
    filled = np.where(has_score, rewards_PG, 0.0)
    mean_P1 = filled.sum(1, keepdims=True) / np.maximum(count_P1, 1)
    apart = np.where(has_score & (count_P1 > 1), filled - mean_P1, 0.0)
    if baseline == "others":
        apart = apart * count_P1 / np.maximum(count_P1 - 1, 1)
    if scale == "none":
        return apart
    if scale == "group":
        squares = np.where(has_score, filled - mean_P1, 0.0) ** 2
        deviation: NDArray[np.float64] = np.sqrt(squares.sum(1, keepdims=True) / np.maximum(count_P1 - 1, 1))
    else:
        scored = rewards_PG[has_score]
        deviation = np.full_like(mean_P1, scored.std(ddof=1) if len(scored) > 1 else 0.0)
    return apart / (deviation + SMALLEST)
