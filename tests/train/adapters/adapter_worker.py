"""Trains adapters on many layouts in one launch. Run by test_layouts.py; see ../engine/layout_worker.py."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))

from layout_worker import Bench, main

from mt_core import AdapterComponent, AdapterContext, LowRankConfig, TargetConfig
from mt_core.adapters import LinearAdapter, LoraLinear, Place, adapted_layers, read_base, write_base
from mt_core.nn import AdaptedLinear, SharedParameters, low_rank
from mt_plugin_standard.lora import Lora
from mt_train.plugins.resolve import Resolved


class ResettingAdapter(Lora):
    """After every second step what was learned goes into the base, A begins anew, and so do its moments.

    On the way it gathers the gradients of B by itself, which have to add up to what the engine has.
    """

    rewrites_base = True

    def __init__(self, config: LowRankConfig) -> None:
        super().__init__(config)
        self.gathered: dict[str, Tensor] = {}
        self.watched: set[str] = set()

    def gather(self, name: str, gradient: Tensor) -> None:
        self.gathered[name] = gradient.float() + self.gathered.get(name, 0.0)

    def after_backward(self, context: AdapterContext) -> None:
        for name, layer in adapted_weights(context):
            gradient = context.read(f"{name}.lora_B", "gradient")
            if name in self.watched:
                distance = (context.total(self.gathered.pop(name)) - gradient).norm() / gradient.norm()
                assert distance < 1e-5, f"step {context.step}, {name}: {distance}"
            else:
                layer.lora_B.register_hook(partial(self.gather, name))
                self.watched.add(name)
            context.write(f"{name}.lora_B", 0.5 * gradient, "gradient")

    def after_step(self, context: AdapterContext) -> None:
        if context.step % 2:
            return
        for name, layer in adapted_weights(context):
            a, b = (context.read(f"{name}.{each}") for each in ("lora_A", "lora_B"))
            write_base(context, name, layer, read_base(context, name, layer) + layer.scale * (b @ a))
            context.write(f"{name}.lora_B", torch.zeros_like(b))
            for part in ("exp_avg", "exp_avg_sq"):
                context.write(f"{name}.lora_B", torch.zeros_like(b), part)


def adapted_weights(context: AdapterContext) -> Any:
    return ((name, module) for name, module in context.modules() if isinstance(module, LoraLinear))


class SharingLinear(AdaptedLinear):
    """Two matrices that all layers of a shape have, and a vector of each one's own."""

    def __init__(self, base: nn.Module, store: SharedParameters) -> None:
        super().__init__(base)
        key = f"{self.out_features}x{self.in_features}"
        self.shared_A = self.shared_parameter(store, f"A {key}", (4, self.in_features), fill)
        self.shared_B = self.shared_parameter(store, f"B {key}", (self.out_features, 4), fill)
        self.gain = self.new_parameter(self.out_features)

    def initialise(self, generator: Generator) -> None:
        self.gain.data.fill_(0.1)

    def adapted_output(self, x: Tensor) -> Tensor:
        return self.base_output(x) + self.gain * low_rank(x, self.shared_A, self.shared_B, 1.0)


def fill(tensor: Tensor, generator: Generator) -> None:
    tensor.copy_(torch.empty(tensor.shape).normal_(0, 0.1, generator=generator))


class SharingAdapter(LinearAdapter[TargetConfig]):
    """Shared parameters that are trained. What ``modules`` names can be read and written, under each of its names."""

    def layer(self, base: nn.Module, place: Place) -> SharingLinear:
        return SharingLinear(base, self.store)

    def after_step(self, context: AdapterContext) -> None:
        for name, module in context.modules():
            for own, parameter in module.named_parameters(recurse=False):
                value = context.read(f"{name}.{own}")
                assert value.numel() > 0, f"{name}.{own}"
                if own.startswith("shared_") and parameter.requires_grad:
                    context.write(f"{name}.{own}", value)


OWN = {"resetting": (ResettingAdapter, LowRankConfig), "sharing": (SharingAdapter, TargetConfig)}


class AdapterBench(Bench):
    """Cases may name adapters of this file as ``new_parameter``."""

    def change_run(self, resolved: Resolved, case: dict[str, Any]) -> None:
        if "own" not in case:
            return
        kind, config = OWN[case["own"]]
        offer = resolved.offers["adapter"]
        component = AdapterComponent(
            name="lora", summary="of the tests", build=kind, config=config, layouts=offer.component.layouts
        )
        resolved.offers["adapter"] = replace(offer, component=component)

    def begin(self, case: dict[str, Any]) -> dict[str, Any]:
        """The first values of everything that the adapter brings or rewrites, with their shapes."""
        model = self.session(case).engine.module.model
        own = {f"{name}.{each}" for name, layer in adapted_layers(model) for each, _ in layer.named_parameters()}
        return {
            name: [list(each.shape), each.detach().flatten().tolist()]
            for name, each in model.named_parameters()
            if name in own
        }

    def merge(self, case: dict[str, Any]) -> dict[str, Any]:
        """Return how far the output of the merged model is from that of the adapted one, and whether the bits come back."""
        from mt_core.adapters import merge, unmerge
        from mt_train.data.loader import Position

        session = self.session(case)
        batch = next(session.loader.windows(Position())).batches[0]
        for _, layer in adapted_layers(session.engine.module.model):
            layer.lora_B.data.normal_(0, 0.1, generator=torch.Generator().manual_seed(1))
        model = session.engine.module.model
        with torch.no_grad():
            before, bits = model(batch), {name: each.clone() for name, each in model.named_parameters()}
            merge(model)
            between = model(batch)
            unmerge(model)
            after = model(batch)
        return {
            "distance": ((between - before).norm() / before.norm()).item(),
            "equal": torch.equal(before, after),
            "bits": all(torch.equal(each, bits[name]) for name, each in model.named_parameters()),
        }


if __name__ == "__main__":
    main(AdapterBench)
