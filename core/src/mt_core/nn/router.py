"""The choice of experts for every token, in fp32 whatever the precision of the model.

Shapes: N tokens, D model width, X experts, K experts of a token, G groups of experts.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from mt_core.config.experts import RouterOptions
from mt_core.nn.compilation import exclude_from_compile

SMALLEST_SUM = 1e-20
"""Added to a sum of weights before they are divided by it, as DeepSeek-V3's code does."""


class Choice(NamedTuple):
    """The experts of each token, the weights of their outputs, and the probabilities of all experts, which sum to 1 for each token: the
    softmax, or the sigmoids divided by their sum."""

    experts_NK: Tensor
    weights_NK: Tensor
    probabilities_NX: Tensor


class Router(nn.Module):
    """Scores each expert for each token, and selects the best.

    ``weight`` is (X, D). ``e_score_correction_bias`` (X,) is a parameter without a gradient: a model that has one names it in ``kept``.
    """

    def __init__(self, options: RouterOptions, width: int) -> None:
        super().__init__()
        self.options = options
        self.weight = nn.Parameter(torch.empty(options.n_experts, width))
        self.bias = nn.Parameter(torch.zeros(options.n_experts)) if options.bias else None
        self.e_score_correction_bias = (
            nn.Parameter(torch.zeros(options.n_experts), requires_grad=False) if options.choice_bias else None
        )

    @exclude_from_compile
    def forward(self, x_ND: Tensor) -> Choice:
        """(N, D) -> the choice; its weights and probabilities are in fp32."""
        bias_X = None if self.bias is None else self.bias.float()
        logits_NX = functional.linear(x_ND.float(), self.weight.float(), bias_X)
        gated_NX = self._gate(logits_NX)
        if self.options.order == "choose-first":
            experts_NK = self._best(logits_NX)
            weights_NK = self._gate(logits_NX.gather(1, experts_NK))
        else:
            experts_NK = self._best(gated_NX)
            weights_NK = gated_NX.gather(1, experts_NK)
        if self.options.normalise:
            weights_NK = weights_NK / (weights_NK.sum(-1, keepdim=True) + SMALLEST_SUM)
        softmax = self.options.gate == "softmax"
        probabilities_NX = gated_NX if softmax else gated_NX / (gated_NX.sum(-1, keepdim=True) + SMALLEST_SUM)
        return Choice(experts_NK, weights_NK * self.options.scale, probabilities_NX)

    def _gate(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1) if self.options.gate == "softmax" else scores.sigmoid()

    @torch.no_grad()
    def _best(self, scores_NX: Tensor) -> Tensor:
        """Return the experts with the highest scores, (N, K), of the best groups where there are any; a choice has no gradient."""
        if self.e_score_correction_bias is not None:
            scores_NX = scores_NX + self.e_score_correction_bias.float()
        if self.options.n_groups > 1:
            scores_NGx = scores_NX.view(len(scores_NX), self.options.n_groups, -1)
            best = scores_NGx.topk(1 if self.options.group_score == "best" else 2, -1).values.sum(-1)
            chosen_NG = torch.zeros_like(best).scatter(1, best.topk(self.options.top_groups, -1).indices, 1.0).bool()
            scores_NX = scores_NGx.masked_fill(~chosen_NG[..., None], float("-inf")).flatten(1)
        return scores_NX.topk(self.options.top_k, -1).indices

    def extra_repr(self) -> str:
        return f"{self.options.top_k} of {self.options.n_experts} experts"
