"""A mixture of experts in the place of an MLP, what it reports, and the two ways to balance its load: a loss, and a bias.

Shapes: B rows, T tokens, N = B · T, D model width, X experts, K experts of a token.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from mt_core.groups import whole_shape
from mt_core.nn.adapted import LossFactor, with_loss
from mt_core.nn.batch import NOT_TRAINED
from mt_core.nn.compilation import exclude_from_compile
from mt_core.nn.context import BlockContext
from mt_core.nn.experts import Experts, ListedExperts
from mt_core.nn.router import Choice, Router
from mt_core.step_context import AdapterContext


class Mixture(nn.Module):
    """A mixture of experts: a router selects and weights experts for each token; ``shared`` is an MLP for every token.

    ``index`` is that of its block. ``router_name`` and ``shared_name`` are the names that published checkpoints have for these parts.
    ``balance`` is the coefficient of ``balance_loss``, which reaches what is trained through ``factor``, the model's ``loss_factor``.
    """

    experts: Experts | ListedExperts

    def __init__(
        self,
        router: Router,
        experts: Experts,
        *,
        index: int,
        shared: nn.Module | None = None,
        balance: float = 0.0,
        factor: LossFactor | None = None,
        router_name: str = "gate",
        shared_name: str = "shared_experts",
    ) -> None:
        super().__init__()
        assert not balance or factor is not None, "a balance loss needs the model's loss_factor"
        self.index, self.balance, self.factor = index, balance, factor
        self.router_name, self.shared_name = router_name, shared_name
        self._modules[router_name] = router  # add_module refuses the name of a property, and gpt-oss has "router"
        self.experts = experts
        self.add_module(shared_name, shared)

    @property
    def router(self) -> Router:
        """The router, by whatever name it is saved."""
        return self._modules[self.router_name]  # type: ignore[return-value]

    def forward(self, x_BTD: Tensor, context: BlockContext) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        x_ND = x_BTD.flatten(0, 1)
        choice: Choice = self.router(x_ND)
        if context.collects():
            report_choice(choice, context, self.choices)
        out_BTD: Tensor = self.experts(x_ND, choice).view_as(x_BTD)
        shared = getattr(self, self.shared_name)
        if shared is not None:
            out_BTD = out_BTD + shared(x_BTD)
        if not (self.balance and self.factor is not None and self.training and torch.is_grad_enabled()):
            return out_BTD
        return with_loss(out_BTD, self.balance * balance_loss(choice, context), self.factor)

    @property
    def choices(self) -> str:
        """Return the name under which blocks gather the choices of a step: how often each expert was chosen by trained tokens, (X,)."""
        return f"experts.{self.index}"

    def flops_per_token(self, length: int) -> float:
        """Return 6 per weight that a token is multiplied by: the router's, those of its own experts, and of what every token gets."""
        layout, shared = self.experts.layout, getattr(self, self.shared_name)
        own = layout.width * (layout.n_experts + 3 * self.router.options.top_k * layout.hidden)
        return 6.0 * (
            own + (0 if shared is None else sum(math.prod(whole_shape(each)) for each in shared.parameters()))
        )


@exclude_from_compile
@torch.no_grad()
def report_choice(choice: Choice, context: BlockContext, name: str) -> None:
    """Gather under this name how often trained tokens chose each expert, (X,), and report figures of a step: those of ``load_figures``, and
    the perplexity of the router's probabilities as a share of all experts (``router_entropy``). Each is the mean over layers."""
    n_experts, trained_N = choice.probabilities_NX.shape[-1], trained_tokens(context).flatten()
    ones_NK = trained_N[:, None].expand_as(choice.experts_NK).flatten().float()
    counts_X = ones_NK.new_zeros(n_experts).index_add_(0, choice.experts_NK.flatten(), ones_NK)
    context.gather(name, counts_X, load_figures)
    entropy_N = torch.special.entr(choice.probabilities_NX).sum(-1)
    context.report("router_entropy", (entropy_N.exp() / n_experts * trained_N).sum(), trained_N.sum())


def load_figures(counts_X: Tensor) -> dict[str, Tensor]:
    """Return the load of the busiest and the idlest expert of a whole step (1 is an equal share), and how many experts no token chose; in
    one of its micro-batches they would be others for each layout."""
    load_X = counts_X * len(counts_X) / counts_X.sum().clamp_min(1)
    return {"router_busiest": load_X.max(), "router_idlest": load_X.min(), "router_dead": (counts_X == 0).sum()}


def balance_by_bias(context: AdapterContext, rate: float) -> None:
    """Raise the bias for the choice of each expert that had less than an equal share of the step's trained tokens by ``rate``, and lower
    that of the others (https://arxiv.org/abs/2408.15664, algorithm 1). A model calls it in ``after_step``."""
    for name, module in context.modules():
        if not isinstance(module, Mixture) or any(each.is_meta for each in module.router.parameters()):
            continue
        bias = f"{name}.{module.router_name}.e_score_correction_bias"
        counts_X = context.step_sum(module.choices)
        context.write(bias, context.read(bias).float() + rate * torch.sign(counts_X.mean() - counts_X).float())


def balance_loss(choice: Choice, context: BlockContext) -> Tensor:
    """Return N · X · Σ_x f_x p_x of each row's N trained tokens, added up: N where the load is even, X N / K where K experts have all.

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
    """Return (B, T), true where a token is trained; all are where the context does not say."""
    labels_BT = context.labels_BT
    return torch.ones_like(context.positions_BT, dtype=torch.bool) if labels_BT is None else labels_BT != NOT_TRAINED
