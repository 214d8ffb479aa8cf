"""A projection with LoRA experts, of which every token takes some. Shapes: E inputs, F outputs, X experts, R rank of one, T tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Generator, Tensor, nn

from mt_core import TargetConfig, UsageError
from mt_core.adapters import LinearAdapter, Place, adapted_layers, uniform
from mt_core.nn import NOT_TRAINED, AdaptedLinear, BlockContext, ListedExperts, TrainModel, with_loss

ConfigT = TypeVar("ConfigT", bound=TargetConfig)


@dataclass(frozen=True, kw_only=True)
class Experts:
    """Number of experts, of which rank, and how a token's are chosen. ``scale`` is that of each expert's update."""

    count: int
    rank: int
    scale: float
    top_k: int
    balance: float
    dropout: float = 0.0
    fp32: bool = False


class PresentRows:
    """The rows that the block which runs now works on. A block is told of them in a recomputation, too."""

    def __init__(self) -> None:
        self.context: BlockContext | None = None

    def watch(self, model: TrainModel) -> None:
        """See what every block is called with."""
        for layer in model.layers()[1:-2]:
            layer.module.register_forward_pre_hook(self._begin)

    def _begin(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        self.context = arguments[1]

    def trained_tokens(self, x: Tensor) -> Tensor:
        """Return which of the tokens of ``x``, (…, T, E), count: (…, T), as 0 and 1. All do where no block has said anything.

        Raises ``UsageError`` for inputs that are not one for each token.
        """
        labels = None if self.context is None else self.context.labels_BT
        if labels is None:
            return x.new_ones(x.shape[:-1], dtype=torch.float32)
        if labels.shape != x.shape[:-1]:
            raise UsageError(
                f"a projection has inputs of shape {tuple(x.shape[:-1])} for tokens of shape {tuple(labels.shape)}, and the balance loss"
                " counts trained tokens; set --adapter.balance 0, or leave such projections out (--adapter.exclude)"
            )
        return (labels != NOT_TRAINED).float()

    def over_row(self, value: Tensor) -> Tensor:
        """See ``BlockContext``."""
        return value if self.context is None else self.context.over_row(value)


class MixtureAdapter(LinearAdapter[ConfigT]):
    """An adapter whose layers ask for ``rows``."""

    def __init__(self, config: ConfigT) -> None:
        super().__init__(config)
        self.rows = PresentRows()

    def inject(self, model: TrainModel) -> None:
        """See ``LinearAdapter``. Raises ``UsageError`` for a balance loss on projections of experts, of which each has some tokens."""
        super().inject(model)
        _refuse_listed_experts(model)
        self.rows.watch(model)


def _refuse_listed_experts(model: TrainModel) -> None:
    experts = tuple(f"{name}." for name, module in model.named_modules() if isinstance(module, ListedExperts))
    for name, layer in adapted_layers(model):
        if name.startswith(experts) and isinstance(layer, MixtureLinear) and layer.experts.balance:
            raise UsageError(
                f"adapter.balance: {name} has only the tokens that chose its expert, and the balance loss counts all trained tokens; set"
                " --adapter.balance 0, or leave projections of experts out (--adapter.exclude '*.experts.*')"
            )


class MixtureLinear(AdaptedLinear):
    """``W x + s · Σ g_i(x) B_i A_i x``, g the softmax of ``lora_gate`` x, of which the largest ``top_k`` stay, divided by their sum.

    The experts' pairs are the rows of ``lora_A`` (X R, E) and the columns of ``lora_B`` (F, X R), one after the other. All
    are multiplied, and those that a token has not chosen then by 0: a few small products cost less than sorting tokens.
    """

    def __init__(self, base: nn.Module, experts: Experts, place: Place, rows: PresentRows) -> None:
        super().__init__(base)
        self.experts, self.factor, self.rows = experts, place.loss_factor, rows
        self.lora_A = self.new_parameter(experts.count * experts.rank, self.in_features)
        self.lora_B = self.new_parameter(self.out_features, experts.count * experts.rank)
        self.lora_gate = self.new_parameter(experts.count, self.in_features)
        self.dropout = nn.Dropout(experts.dropout) if experts.dropout else None

    def initialise(self, generator: Generator) -> None:
        """A and the gate uniform, B zero."""
        self.lora_A.data.copy_(uniform(self.lora_A, generator))
        self.lora_gate.data.copy_(uniform(self.lora_gate, generator))
        self.lora_B.data.zero_()

    def adapted_output(self, x: Tensor) -> Tensor:
        """(…, T, E) -> (…, T, F)."""
        out: Tensor = self.base_output(x)
        inputs = (x if self.dropout is None else self.dropout(x)).to(torch.float32 if self.experts.fp32 else out.dtype)
        probabilities, weights = self.route(x)
        inner = (inputs @ self.lora_A.to(inputs.dtype).mT).unflatten(-1, (self.experts.count, -1))
        chosen = (weights[..., None].to(inputs.dtype) * inner).flatten(-2)
        out = out + (self.experts.scale * (chosen @ self.lora_B.to(inputs.dtype).mT)).to(out.dtype)
        if not (self.experts.balance and self.training and torch.is_grad_enabled()):
            return out
        balance = balance_sum(probabilities, weights, self.rows.trained_tokens(x), self.rows.over_row)
        return with_loss(out, self.experts.balance * balance, self.factor)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
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


def balance_sum(
    probabilities: Tensor, weights: Tensor, counts: Tensor, over_row: Callable[[Tensor], Tensor] = Tensor.detach
) -> Tensor:
    """N · X · Σ_i f_i p_i of each row's N trained tokens, added up: N where the load is even, X N where one expert has all.

    f_i is the share of the row's choices that went to expert i, without a gradient, and p_i the mean of its probability
    (https://arxiv.org/abs/2101.03961, equation 4; rows by themselves as in https://arxiv.org/abs/2412.19437, equation 17).
    ``counts`` (…, T) is 1 for a trained token and 0 for another, such as padding; ``over_row`` adds up over the ranks that share rows.
    """
    chosen = over_row(((weights > 0) * counts[..., None]).sum(-2, keepdim=True))
    share = chosen / chosen.sum(-1, keepdim=True).clamp_min(1)
    return probabilities.shape[-1] * (share * probabilities * counts[..., None]).sum()
