"""AdamW: Adam with decoupled weight decay (https://arxiv.org/abs/1711.05101)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from mt_core import GroupOptions

if TYPE_CHECKING:
    from torch.optim import Optimizer


class AdamWConfig(GroupOptions):
    """The defaults are those of Llama's training, but for the rate (https://arxiv.org/abs/2302.13971, section 2.3)."""

    beta1: float = Field(0.9, ge=0, lt=1, description="decay of the gradient's mean (per update)")
    beta2: float = Field(0.95, ge=0, lt=1, description="decay of the squared gradient's mean (per update)")
    eps: float = Field(
        1e-8, gt=0, description="added to the root of the squared gradient's mean (units of the gradient)"
    )
    weight_decay: float = Field(
        0.1, ge=0, description="share of a matrix taken away per update, times the learning rate; vectors keep all"
    )
    fused: bool = Field(
        True,
        description="one kernel for the whole update; false takes torch's plain operations, slower by a factor of four",
    )


def build_adamw(config: AdamWConfig, groups: list[dict[str, Any]]) -> Optimizer:
    """AdamW over named groups; a group's own ``lr`` or ``weight_decay`` stays.

    Both forms update each number alike, however ZeRO cuts the weights into pieces.
    """
    from torch.optim import AdamW

    from .adamw import SliceInvariantAdamW

    options: dict[str, Any] = {
        "lr": config.lr,
        "betas": (config.beta1, config.beta2),
        "eps": config.eps,
        "weight_decay": config.weight_decay,
    }
    return SliceInvariantAdamW(groups, **options) if config.fused else AdamW(groups, **options, foreach=False)
