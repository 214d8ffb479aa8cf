"""Adam on gradients of low rank: GaLore (https://arxiv.org/abs/2403.03507) and APOLLO (https://arxiv.org/abs/2412.05270).

Shapes: M rows, N columns, R rank. The longer side of a matrix stays, the shorter one becomes R. Both follow their authors'
code (galore-torch 1.0, apollo-torch 1.0.3): epsilon beside the root that is not corrected, decay after the update.
"""

from __future__ import annotations

import math
import zlib

import torch
from torch import Tensor

from .rule import Group, RuleOptimizer, State, corrections, decay_weight, moments, start_moments


class _LowRank(RuleOptimizer):
    """Adam on projected gradients for matrices of blocks; plain Adam for all others."""

    def start(self, weight: Tensor, state: State, group: Group) -> None:
        if not is_projected(weight, group):
            start_moments(state, weight)

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: Group) -> None:
        self.follow(weight, self.direction(gradient, state, group), state, group)

    def direction(self, gradient: Tensor, state: State, group: Group) -> Tensor:
        projected = is_projected(gradient, group)
        if projected:
            small = self.project(gradient, state, group)
            if "exp_avg" not in state:
                start_moments(state, small)
        else:
            small = gradient
        mean, square = moments(state, small, group)
        first, second = corrections(state, group)
        direction, corrected = mean / square.sqrt().add_(group["eps"]), math.sqrt(second) / first
        if not projected:
            return direction.mul_(corrected)
        return self.expand(direction, small, gradient, state, group).mul_(corrected * self.factor(group))

    def follow(self, weight: Tensor, direction: Tensor, state: State, group: Group) -> None:
        weight.sub_(direction, alpha=group["lr"])
        decay_weight(weight, group)

    def project(self, gradient_MN: Tensor, state: State, group: Group) -> Tensor:
        """Return the small gradient; every ``update_steps`` updates by a new projection, which follows from this gradient."""
        if (int(state["step"]) - 1) % group["update_steps"] == 0:
            state["projection"] = self.projection(gradient_MN, state, group)
        return project(gradient_MN, state["projection"])

    def projection(self, gradient_MN: Tensor, state: State, group: Group) -> Tensor:
        """(N, R) for a tall matrix, (R, M) for a wide one."""
        raise NotImplementedError

    def expand(self, direction: Tensor, small: Tensor, gradient_MN: Tensor, state: State, group: Group) -> Tensor:
        """The direction of the whole matrix, but for ``factor``."""
        raise NotImplementedError

    def factor(self, group: Group) -> float:
        """Return the factor of projected matrices' directions."""
        raise NotImplementedError


class GaLore(_LowRank):
    """The projection holds the gradient's largest singular vectors; the update is projected back."""

    def projection(self, gradient_MN: Tensor, state: State, group: Group) -> Tensor:
        left_MK, _, right_KN = torch.linalg.svd(gradient_MN, full_matrices=False)
        kept: Tensor = right_KN[: group["rank"]].T if _is_tall(gradient_MN) else left_MK[:, : group["rank"]].T
        return kept.contiguous()

    def expand(self, direction: Tensor, small: Tensor, gradient_MN: Tensor, state: State, group: Group) -> Tensor:
        projection: Tensor = state["projection"]
        return direction @ projection.T if _is_tall(gradient_MN) else projection.T @ direction

    def factor(self, group: Group) -> float:
        return float(group["scale"])


class Apollo(_LowRank):
    """The projection is random; Adam on it says only how long each channel of the plain gradient should be."""

    def projection(self, gradient_MN: Tensor, state: State, group: Group) -> Tensor:
        seed = int(state["seed"]) if "seed" in state else zlib.crc32(group["name"].encode())
        state["seed"] = torch.tensor([_next_seed(seed)])
        generator, rank = torch.Generator().manual_seed(seed), group["rank"]
        shorter = min(gradient_MN.shape)
        # as the authors draw it, so that their runs can be repeated
        size = (rank, shorter) if _is_tall(gradient_MN) else (shorter, rank)
        drawn = torch.randn(size, generator=generator).T / math.sqrt(rank)
        return drawn.contiguous().to(gradient_MN)

    def expand(self, direction: Tensor, small: Tensor, gradient_MN: Tensor, state: State, group: Group) -> Tensor:
        dim = (1 if _is_tall(gradient_MN) else 0) if group["scaled"] == "channel" else (0, 1)
        lengths, before = (torch.linalg.vector_norm(each, dim=dim, keepdim=True) for each in (direction, small))
        scaled = gradient_MN * (lengths / (before + 1e-8))
        return _limit(scaled, state)

    def factor(self, group: Group) -> float:
        return math.sqrt(group["scale"])


def _limit(update: Tensor, state: State) -> Tensor:
    """Limit an update to at most 1% longer than the update before (https://arxiv.org/abs/2410.01623, norm-growth limiter).

    One of zeros, such as the first one of a LoRA's ``lora_A``, has no length that the next could be compared with.
    """
    length = torch.linalg.vector_norm(update).reshape(1)
    before = state.get("length", torch.zeros_like(length))
    excess = torch.where(before > 0, (length / (before + 1e-8)).clamp(min=1.01) / 1.01, 1.0)
    state["length"] = torch.where(length > 0, length / excess, before)
    return update / excess


def is_projected(weight: Tensor, group: Group) -> bool:
    """Return whether a matrix is larger than the projection would be."""
    return bool(group["transformed"]) and min(weight.shape) > group["rank"]


def _is_tall(matrix_MN: Tensor) -> bool:
    return matrix_MN.shape[0] >= matrix_MN.shape[1]


def project(gradient_MN: Tensor, projection: Tensor) -> Tensor:
    """(M, R) for a tall matrix, (R, N) for a wide one."""
    return gradient_MN @ projection if _is_tall(gradient_MN) else projection @ gradient_MN


def _next_seed(seed: int) -> int:
    generator = torch.Generator().manual_seed(seed)
    return int(torch.randint(0, torch.iinfo(torch.int64).max, (15,), generator=generator)[-1])
