"""Options of a mixture: how a router chooses experts, and how those are stored, in either of two forms. Imports no torch.

Shapes: X experts, D model width, F hidden width of an expert.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class ExpertLayout:
    """Sizes of a layer's experts, and the order of gate and up in the fused tensors. A family declares it; nothing is guessed from shapes.

    Fused, a layer has ``gate_up_proj`` (X, 2F, D) and ``down_proj`` (X, D, F); listed, every expert is a module of its own with three
    linear layers under the names of ``projections``: gate, up and down. Experts without a gate name two, up and down, and have
    ``up_proj`` (X, F, D) in the place of ``gate_up_proj``.
    """

    n_experts: int
    width: int
    hidden: int
    interleaved: bool = False
    """Gate and up take turns, as in gpt-oss; else all of the gate comes before all of the up projection."""
    transposed: bool = False
    """The fused tensors are (X, D, 2F) and (X, F, D), as in gpt-oss."""
    bias: bool = False
    """All projections have biases; fused they are ``gate_up_proj_bias`` (X, 2F) and ``down_proj_bias`` (X, D)."""
    projections: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")

    @property
    def inner(self) -> str:
        """Return the name of the fused tensor that multiplies tokens; ``down_proj`` is that which multiplies hidden values."""
        return "gate_up_proj" if len(self.projections) > 2 else "up_proj"

    def fused_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return name → shape of the tensors of the fused form."""
        n_inner = (len(self.projections) - 1) * self.hidden
        first, second = (n_inner, self.width), (self.width, self.hidden)
        if self.transposed:
            first, second = first[::-1], second[::-1]
        shapes: dict[str, tuple[int, ...]] = {
            self.inner: (self.n_experts, *first),
            "down_proj": (self.n_experts, *second),
        }
        if self.bias:
            shapes[f"{self.inner}_bias"] = (self.n_experts, n_inner)
            shapes["down_proj_bias"] = (self.n_experts, self.width)
        return shapes

    def listed_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return name → shape of the tensors of the listed form, as ``3.gate_proj.weight``."""
        *inner, down = self.projections
        each = {**dict.fromkeys(inner, (self.hidden, self.width)), down: (self.width, self.hidden)}
        shapes: dict[str, tuple[int, ...]] = {}
        for expert in range(self.n_experts):
            for name, shape in each.items():
                shapes[f"{expert}.{name}.weight"] = shape
                if self.bias:
                    shapes[f"{expert}.{name}.bias"] = shape[:1]
        return shapes


@dataclass(frozen=True, kw_only=True)
class RouterOptions:
    """Options of a router: how scores select experts and weight them. Raises ``ValueError`` for sizes that do not fit."""

    n_experts: int
    top_k: int
    gate: Literal["softmax", "sigmoid"] = "softmax"
    order: Literal["gate-first", "choose-first"] = "gate-first"
    """Gate all experts and take the best; or take the best and gate those alone, as gpt-oss does."""
    normalise: bool = False
    """Divide the weights of a token by their sum."""
    scale: float = 1.0
    """Factor of the weights, after that."""
    n_groups: int = 1
    """Groups of neighbouring experts (https://arxiv.org/abs/2405.04434, section 2.2.2)."""
    top_groups: int = 1
    """Groups that a token may choose experts of."""
    group_score: Literal["best", "best-two"] = "best-two"
    """The score of a group: that of its best expert (DeepSeek-V2), or of its best two added up (V3)."""
    bias: bool = False
    """A trained bias is added to the scores before the gate."""
    choice_bias: bool = False
    """``e_score_correction_bias`` is added to the gated scores for the choice alone (https://arxiv.org/abs/2408.15664)."""

    def __post_init__(self) -> None:
        faults = []
        if not 0 < self.top_k <= self.n_experts:
            faults.append(f"top_k={self.top_k} of n_experts={self.n_experts} experts; choose from 1 to all of them")
        if self.n_groups < 1 or self.n_experts % self.n_groups:
            faults.append(f"n_groups={self.n_groups} does not divide n_experts={self.n_experts}; set a divisor, or 1")
        elif not 0 < self.top_groups <= self.n_groups:
            faults.append(f"top_groups={self.top_groups} of n_groups={self.n_groups}; choose from 1 to all of them")
        elif self.top_k > self.top_groups * (self.n_experts // self.n_groups):
            reach = self.top_groups * (self.n_experts // self.n_groups)
            faults.append(f"top_k={self.top_k} experts of {reach} in the chosen groups; raise top_groups")
        if faults:
            raise ValueError("; ".join(faults))
