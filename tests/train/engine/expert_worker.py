"""The bench of ``layout_worker`` on a small mixture of experts. Run by test_experts.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from layout_worker import Bench, main
from torch import Tensor, nn
from torch.nn import functional as F

from mt_core.nn import ExpertExchange
from mt_plugin_llama.model import Llama
from mt_train.assemble.session import Session
from mt_train.plugins.resolve import Resolved

EXPERTS = 4


class Experts(nn.Module):
    """Experts in two tensors; a token goes to those that its id says (all ids below 97 to the first two) and that a router weighs.

    Shapes: N tokens, D width, R rows, X experts.
    """

    exchange: ExpertExchange | None = None

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.n_experts = EXPERTS
        self.up = nn.Parameter(torch.empty(EXPERTS, hidden, width))
        self.down = nn.Parameter(torch.empty(EXPERTS, width, hidden))
        self.bias = nn.Parameter(torch.empty(EXPERTS, width))

    def forward(self, x_ND: Tensor, experts_NK: Tensor, weights_NK: Tensor) -> Tensor:
        expert_R, order_R = experts_NK.flatten().sort(stable=True)
        token_R = order_R // experts_NK.shape[1]
        counts_X = torch.bincount(expert_R, minlength=EXPERTS)
        run = self.compute if self.exchange is None else lambda rows, counts: self.exchange(rows, counts, self.compute)
        out_RD = run(x_ND[token_R], counts_X) * weights_NK.flatten()[order_R][:, None]
        return torch.zeros_like(x_ND).index_add(0, token_R, out_RD)

    def compute(self, rows_RD: Tensor, counts_E: Tensor) -> Tensor:
        parts = rows_RD.split(counts_E.tolist())
        weights = zip(parts, self.up, self.down, self.bias, strict=True)
        return torch.cat([F.silu(part @ up.T) @ down.T + bias for part, up, down, bias in weights])


class Mixture(nn.Module):
    """In the place of an MLP: two of four experts a token."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, EXPERTS, bias=False)
        self.experts = Experts(width, hidden)

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_ND = x_BTD.flatten(0, 1)
        probabilities_NX = self.gate(x_ND).float().softmax(-1)
        weights_NK, experts_NK = probabilities_NX.topk(2)
        return self.experts(x_ND, experts_NK, weights_NK.to(x_ND.dtype)).view_as(x_BTD)


class MixtureModel(Llama):
    """Llama whose blocks have a mixture; ``init_tensor`` makes its router choose plainly."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for block in self.model.layers:
            block.mlp = Mixture(config.dim, config.ffn_dim)

    def init_tensor(self, name: str, tensor: Tensor, generator: Any) -> None:
        if tensor.dim() > 1 or name.endswith("bias"):
            tensor.normal_(0.0, 0.2, generator=generator)
        else:
            super().init_tensor(name, tensor, generator)


class Mixtures(Bench):
    """Rows of the case's own where it names some."""

    def session(self, case: dict[str, Any], *positional: Any, **named: Any) -> Session:
        self.rows = Path(case.get("rows", self.rows))
        return super().session(case, *positional, **named)

    def change_run(self, resolved: Resolved, case: dict[str, Any]) -> None:
        offer = resolved.offers["train_model"]
        layouts = offer.component.layouts | {"expert"}
        component = replace(offer.component, build=MixtureModel, layouts=layouts)
        resolved.offers["train_model"] = replace(offer, component=component)


if __name__ == "__main__":
    main(Mixtures)
