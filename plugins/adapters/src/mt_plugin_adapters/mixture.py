"""A projection with LoRA experts, of which every token takes some. Shapes: E inputs, F outputs, X experts, R rank of one, T tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from mt_core import UsageError
from mt_core.adapters import uniform
from mt_core.nn import AdaptedLinear, LossFactor, with_loss


@dataclass(frozen=True, kw_only=True)
class Experts:
    """How many experts there are, of which rank, and how a token's are chosen. ``scale`` is that of each expert's update."""

    count: int
    rank: int
    scale: float
    top_k: int
    balance: float
    dropout: float = 0.0
    fp32: bool = False


class MixtureLinear(AdaptedLinear):
    """``W x + s · Σ g_i(x) B_i A_i x``, g the softmax of ``lora_gate`` x, of which the largest ``top_k`` stay, divided by their sum.

    The experts' pairs are the rows of ``lora_A`` (X R, E) and the columns of ``lora_B`` (F, X R), one after the other. All
    are multiplied, and those that a token has not chosen then by 0: a few small products cost less than sorting tokens.
    """

    def __init__(self, base: nn.Module, experts: Experts, factor: LossFactor) -> None:
        super().__init__(base)
        self.experts, self.factor = experts, factor
        self.lora_A = self.own(experts.count * experts.rank, self.in_features)
        self.lora_B = self.own(self.out_features, experts.count * experts.rank)
        self.lora_gate = self.own(experts.count, self.in_features)
        self.dropout = nn.Dropout(experts.dropout) if experts.dropout else None

    def initialise(self, generator: Generator) -> None:
        """A and the gate uniform, B zero."""
        self.lora_A.data.copy_(uniform(self.lora_A, generator))
        self.lora_gate.data.copy_(uniform(self.lora_gate, generator))
        self.lora_B.data.zero_()

    def adapted(self, x: Tensor) -> Tensor:
        """(…, T, E) -> (…, T, F)."""
        out: Tensor = self.base_output(x)
        inputs = (x if self.dropout is None else self.dropout(x)).to(torch.float32 if self.experts.fp32 else out.dtype)
        probabilities, weights = self.routed(x)
        inner = (inputs @ self.lora_A.to(inputs.dtype).mT).unflatten(-1, (self.experts.count, -1))
        chosen = (weights[..., None].to(inputs.dtype) * inner).flatten(-2)
        out = out + (self.experts.scale * (chosen @ self.lora_B.to(inputs.dtype).mT)).to(out.dtype)
        if not (self.experts.balance and self.training and torch.is_grad_enabled()):
            return out
        return with_loss(out, self.experts.balance * balance_sum(probabilities, weights), self.factor)

    def routed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The gate's softmax and the experts' weights, (…, T, X) both, in fp32: a choice must not hang on rounding."""
        probabilities = (x.float() @ self.lora_gate.float().mT).softmax(-1)
        best = probabilities.topk(self.experts.top_k, -1)
        shares = best.values / best.values.sum(-1, keepdim=True)
        return probabilities, torch.zeros_like(probabilities).scatter(-1, best.indices, shares)

    def delta_weight(self) -> Tensor:
        """Raises ``UsageError``: there is none."""
        raise UsageError(
            "a mixture of experts takes another update for every token, so that no weight does the same; generate with the"
            " adapter as it is, or train one that merges (lora)"
        )


def balance_sum(probabilities: Tensor, weights: Tensor) -> Tensor:
    """T · X · Σ_i f_i p_i of each row, added up: 1 for each token where the load is even, X where one expert has all.

    f_i is the share of the row's choices that went to expert i, without a gradient, and p_i the mean of its probability
    (https://arxiv.org/abs/2101.03961, equation 4; rows by themselves as in https://arxiv.org/abs/2412.19437, equation 17).
    """
    share = (weights.detach() > 0).to(probabilities.dtype).mean(-2, keepdim=True)
    share = share / share.sum(-1, keepdim=True)
    return probabilities.shape[-1] * (share * probabilities).sum()
