"""The bench of ``layout_worker`` on a small mixture of experts. Run by test_experts.py."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from layout_worker import Bench, main
from torch import Tensor

from mt_core import ExpertLayout, RouterOptions
from mt_core.generation import GenerationConfig
from mt_core.nn import ExpertExchange, Experts, Mixture, Received, Router
from mt_plugin_llama.model import Llama
from mt_train.assemble.session import Session
from mt_train.assemble.subjects import live_subject
from mt_train.data.loader import Position
from mt_train.engine.access import Access
from mt_train.engine.live_weights import LiveWeights
from mt_train.plugins.resolve import Resolved

EXPERTS = 4


class MixtureModel(Llama):
    """Llama whose blocks have a mixture. A ``blind`` one's routers begin at 0: all tokens go to the same two experts."""

    def __init__(self, config: Any, *, blind: bool) -> None:
        super().__init__(config)
        self.blind = blind
        layout = ExpertLayout(n_experts=EXPERTS, width=config.dim, hidden=config.ffn_dim, bias=True)
        for index, block in enumerate(self.model.layers):
            router = Router(RouterOptions(n_experts=EXPERTS, top_k=2), config.dim)
            block.mlp = Mixture(router, Experts(layout), index=index, balance=0.05, factor=self.loss_factor)

    def init_tensor(self, name: str, tensor: Tensor, generator: Any) -> None:
        if name.endswith("gate.weight") and self.blind:
            tensor.zero_()
        elif ".mlp." in name:
            tensor.normal_(0.0, 0.2, generator=generator)
        else:
            super().init_tensor(name, tensor, generator)


def put_mixture(resolved: Resolved, *, blind: bool = False) -> None:
    """Let a run train the mixture in the place of Llama."""
    offer = resolved.offers["train_model"]
    layouts = offer.component.layouts | {"expert"}
    component = replace(offer.component, build=partial(MixtureModel, blind=blind), layouts=layouts)
    resolved.offers["train_model"] = replace(offer, component=component)


class NotingExchange:
    """Takes note of the fewest rows that come to this rank."""

    def __init__(self, exchange: ExpertExchange) -> None:
        self.exchange, self.fewest = exchange, 1_000_000

    def __call__(self, rows_SD: Tensor, ends_X: Tensor) -> Received:
        received = self.exchange(rows_SD, ends_X)
        self.fewest = min(self.fewest, len(received.rows_RD))
        return received


class Mixtures(Bench):
    """Trains, and looks at weights, gradients and moments as adapters and callbacks do."""

    noting: list[NotingExchange]

    def change_run(self, resolved: Resolved, case: dict[str, Any]) -> None:
        put_mixture(resolved, blind=case.get("blind", False))

    def session(self, *positional: Any, **named: Any) -> Session:
        session = super().session(*positional, **named)
        self.noting = []
        for module in session.engine.module.modules():
            if isinstance(module, Experts) and module.exchange is not None:
                module.exchange = NotingExchange(module.exchange)
                self.noting.append(module.exchange)
        return session

    def run(self, case: dict[str, Any]) -> dict[str, Any]:
        found = super().run(case)
        fewest: list[Any] = [None] * self.process.world
        dist.all_gather_object(fewest, min((each.fewest for each in self.noting), default=None))
        return {**found, "fewest": fewest}

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


PARTS = (
    "model.layers.0.mlp.experts.gate_up_proj",
    "model.layers.1.mlp.experts.down_proj_bias",
    "model.layers.1.mlp.gate.weight",
)


def _read(access: Access, part: str) -> dict[str, list[float]]:
    return {f"{name} {part}": access.read(name, part).flatten().tolist() for name in PARTS}


def _is_close(ours: Tensor, theirs: Tensor) -> bool:
    return torch.allclose(ours.flatten(), theirs, rtol=1e-6)


if __name__ == "__main__":
    main(Mixtures)
