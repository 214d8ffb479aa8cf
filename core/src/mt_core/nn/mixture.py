"""A mixture of experts in the place of an MLP, and the loss that balances its load.

Shapes: B rows, T tokens, N = B · T, D model width, X experts, K experts of a token.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mt_core.nn.adapted import LossFactor, with_loss
from mt_core.nn.batch import NOT_TRAINED
from mt_core.nn.context import BlockContext
from mt_core.nn.experts import Experts, ListedExperts
from mt_core.nn.router import Choice, Router


class Mixture(nn.Module):
    """Each token's own experts, weighed by its router, and what every token gets beside them (``shared``).

    ``router_name`` and ``shared_name`` are the names that published checkpoints have for these parts. ``balance`` is the coefficient of
    ``balance_loss``, which reaches what is trained through ``factor``, the model's ``loss_factor``.
    """

    experts: Experts | ListedExperts

    def __init__(
        self,
        router: Router,
        experts: Experts,
        *,
        shared: nn.Module | None = None,
        balance: float = 0.0,
        factor: LossFactor | None = None,
        router_name: str = "gate",
        shared_name: str = "shared_experts",
    ) -> None:
        super().__init__()
        assert not balance or factor is not None, "a balance loss needs the model's loss_factor"
        self.balance, self.factor = balance, factor
        self.router_name, self.shared_name = router_name, shared_name
        self.add_module(router_name, router)
        self.experts = experts
        self.add_module(shared_name, shared)

    def forward(self, x_BTD: Tensor, context: BlockContext) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        x_ND = x_BTD.flatten(0, 1)
        choice: Choice = self.get_submodule(self.router_name)(x_ND)
        self.note_choice(choice, context)
        out_BTD: Tensor = self.experts(x_ND, choice).view_as(x_BTD)
        shared = getattr(self, self.shared_name)
        if shared is not None:
            out_BTD = out_BTD + shared(x_BTD)
        if not (self.balance and self.factor is not None and self.training and torch.is_grad_enabled()):
            return out_BTD
        return with_loss(out_BTD, self.balance * balance_loss(choice, context), self.factor)

    def note_choice(self, choice: Choice, context: BlockContext) -> None:
        """Report or gather what the choice shows; a family that balances by it adds its own. Nothing here."""

    def flops_per_token(self, length: int) -> float:
        """6 per weight that a token meets: the router, its own experts, and what is shared."""
        layout, shared = self.experts.layout, getattr(self, self.shared_name)
        router = self.get_submodule(self.router_name)
        assert isinstance(router, Router), f"{self.router_name} is the router"
        weights = layout.width * (3 * layout.hidden * router.options.top_k + layout.n_experts)
        return 6.0 * weights + (0.0 if shared is None else shared.flops_per_token(length))


def balance_loss(choice: Choice, context: BlockContext) -> Tensor:
    """N · X · Σ_x f_x p_x of each row's N trained tokens, added up: N where the load is even, X N / K where K experts have all.

    f_x is the share of the row's choices that went to expert x, without a gradient, and p_x the mean of its probability
    (https://arxiv.org/abs/2101.03961, equation 4; rows by themselves as in https://arxiv.org/abs/2412.19437, equation 17). A sum
    over trained tokens, it does not hang on how rows are divided into micro-batches and ranks (docs/decisions/0037-mixtures-of-experts.md).
    """
    rows = len(context.positions_BT)
    probabilities_BTX = choice.probabilities_NX.view(rows, -1, choice.probabilities_NX.shape[-1])
    counts_BT1 = trained_tokens(context).to(probabilities_BTX.dtype)[..., None]
    chosen_BTX = torch.zeros_like(probabilities_BTX).scatter_(
        -1, choice.experts_NK.view(rows, -1, choice.experts_NK.shape[-1]), 1.0
    )
    chosen_B1X = context.over_row((chosen_BTX * counts_BT1).sum(1, keepdim=True))
    share_B1X = chosen_B1X / chosen_B1X.sum(-1, keepdim=True).clamp_min(1)
    loss_sum: Tensor = probabilities_BTX.shape[-1] * (share_B1X * probabilities_BTX * counts_BT1).sum()
    return loss_sum


def trained_tokens(context: BlockContext) -> Tensor:
    """(B, T) where a token is trained; all are where the context does not say."""
    labels_BT = context.labels_BT
    return torch.ones_like(context.positions_BT, dtype=torch.bool) if labels_BT is None else labels_BT != NOT_TRAINED
