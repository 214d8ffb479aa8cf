"""The bench of ``layout_worker`` on a small mixture of experts. Run by test_experts.py."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from layout_worker import Bench, main
from torch import Tensor, nn
from torch.nn import functional as F

from mt_core.generation import GenerationConfig
from mt_core.nn import ExpertExchange
from mt_plugin_llama.model import Llama
from mt_train.assemble.session import Session
from mt_train.assemble.subjects import live_subject
from mt_train.data.loader import Position
from mt_train.engine.access import Access
from mt_train.engine.live_weights import LiveWeights
from mt_train.plugins.resolve import Resolved

EXPERTS = 4


class Experts(nn.Module):
    """Experts in three tensors. Shapes: N tokens, D width, R rows, X experts, E of them here."""

    exchange: ExpertExchange | None = None

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fewest = 1_000_000
        self.up = nn.Parameter(torch.empty(EXPERTS, hidden, width))
        self.down = nn.Parameter(torch.empty(EXPERTS, width, hidden))
        self.bias = nn.Parameter(torch.empty(EXPERTS, width))

    def forward(self, x_ND: Tensor, experts_NK: Tensor, weights_NK: Tensor) -> Tensor:
        expert_R, order_R = experts_NK.flatten().sort(stable=True)
        token_R = order_R // experts_NK.shape[1]
        counts_X = torch.bincount(expert_R, minlength=EXPERTS)
        if self.exchange is None:
            out_RD = self.compute(x_ND[token_R], counts_X)
        else:
            rows_RD, ends_E, back = self.exchange(x_ND[token_R], counts_X.cumsum(0))
            out_RD = back(self.compute(rows_RD, ends_E.diff(prepend=ends_E.new_zeros(1))))
        return torch.zeros_like(x_ND).index_add(0, token_R, out_RD * weights_NK.flatten()[order_R][:, None])

    def compute(self, rows_RD: Tensor, counts_E: Tensor) -> Tensor:
        self.fewest = min(self.fewest, len(rows_RD))
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
    """Llama whose blocks have a mixture. A ``blind`` one's routers begin at 0: all tokens go to the same two experts."""

    def __init__(self, config: Any, *, blind: bool) -> None:
        super().__init__(config)
        self.blind = blind
        for block in self.model.layers:
            block.mlp = Mixture(config.dim, config.ffn_dim)

    def init_tensor(self, name: str, tensor: Tensor, generator: Any) -> None:
        if name.endswith("gate.weight") and self.blind:
            tensor.zero_()
        elif tensor.dim() > 1 or name.endswith("bias"):
            tensor.normal_(0.0, 0.2, generator=generator)
        else:
            super().init_tensor(name, tensor, generator)


class Mixtures(Bench):
    """Trains, and looks at weights, gradients and moments as adapters and callbacks do."""

    def change_run(self, resolved: Resolved, case: dict[str, Any]) -> None:
        offer = resolved.offers["train_model"]
        build = partial(MixtureModel, blind=case.get("blind", False))
        component = replace(offer.component, build=build, layouts=offer.component.layouts | {"expert"})
        resolved.offers["train_model"] = replace(offer, component=component)

    def run(self, case: dict[str, Any]) -> dict[str, Any]:
        self.last: Session | None = None
        found = super().run(case)
        assert self.last is not None, "a session has been made"
        fewest = [each.fewest for each in self.last.engine.module.modules() if isinstance(each, Experts)]
        every: list[Any] = [None] * self.process.world
        dist.all_gather_object(every, min(fewest))
        return {**found, "fewest": every}

    def session(self, *positional: Any, **named: Any) -> Session:
        self.last = super().session(*positional, **named)
        return self.last

    def look(self, case: dict[str, Any]) -> dict[str, Any]:
        """What adapters read of a step, and whether what they and callbacks write is there afterwards."""
        session = self.session(case)
        engine, batches = session.engine, next(session.loader.windows(Position())).batches
        access = Access(engine, step=1, total_steps=2, rate=0.01)
        read: dict[str, Any] = {}
        engine.set_rate(1.0)
        engine.train_step(batches, before_update=lambda: read.update(_read(access, "gradient")))
        read |= _read(access, "weight") | _read(access, "exp_avg")
        whole = {name: weight.clone() for name, weight in engine.whole_weights()}
        live = LiveWeights(engine)
        gathered = all(torch.equal(value, whole[name]) for name, value in live.gather(list(live.slices())))
        with live.substitute([(name, start, values * 0) for name, start, values in live.slices()]):
            gone = not any(weight.any() for _, weight in engine.whole_weights())
        back = all(torch.equal(weight, whole[name]) for name, weight in engine.whole_weights())
        for name in PARTS:
            access.write(name, whole[name] * 2)
            access.write(name, access.read(name, "exp_avg") * 2, "exp_avg")
        doubled = all(torch.equal(weight, whole[name] * 2) for name, weight in engine.whole_weights() if name in PARTS)
        kept = all(_is_close(access.read(name, "exp_avg"), 2 * torch.tensor(read[f"{name} exp_avg"])) for name in PARTS)
        for name in PARTS:
            access.write(name, whole[name])
        subject = live_subject(session.parts, session.data, engine, stop=lambda: False)
        texts = subject.generate([[3, 5, 7, 9], [90, 91], [9]], GenerationConfig(max_new_tokens=6))
        return {"read": read, "true": [gathered, gone, back, doubled, kept], "texts": [each.ids for each in texts]}


PARTS = ("model.layers.0.mlp.experts.up", "model.layers.1.mlp.experts.bias", "model.layers.1.mlp.gate.weight")


def _read(access: Access, part: str) -> dict[str, list[float]]:
    return {f"{name} {part}": access.read(name, part).flatten().tolist() for name in PARTS}


def _is_close(ours: Tensor, theirs: Tensor) -> bool:
    return torch.allclose(ours.flatten(), theirs, rtol=1e-6)


if __name__ == "__main__":
    main(Mixtures)
