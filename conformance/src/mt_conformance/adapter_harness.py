"""An adapter as its checks need it: the model that it is tried on, with values, a few steps, and what is saved."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mt_conformance import tiny, trainer
from mt_conformance.adapter_model import base_model, begin_adapter, resume_adapter
from mt_conformance.forward import rows_of
from mt_conformance.host import hermetic_host
from mt_conformance.layouts import LayoutConformance, small_run
from mt_conformance.plain_training import PlainTraining
from mt_core.adapters.base import Adapter
from mt_core.components import AdapterComponent
from mt_core.nn import Batch, TrainModel
from mt_core.plugins.host import PluginHost

TOKENS = 24


class AdapterConformance(LayoutConformance):
    """Adapter that is tested. The checks are in ``BaseAdapterConformance``."""

    kind = "adapter"
    fixed_options = ("targets", "fp32")
    exact_within: float = 1e-5
    """How far the first output may be from the base's, as a share of it: rounding. For ``exact_at_init=False`` say here how far."""
    merged_within: float = 1e-5
    """How far the merged model's output may be from the adapted one's, as a share of it: rounding of another order of sums."""
    rate: float = 1e-2
    """Learning rate of the few steps that have to lower the loss."""
    model: Mapping[str, Any] = {"name": tiny.NAME, "dim": 32}
    """The family and shape that it is tried on, as in ``run.yaml``."""
    quantizer: Mapping[str, Any] = {"name": tiny.EIGHT_BITS}
    """Quantizer of the base, for an adapter that says that it works over one."""

    def run(self, host: PluginHost, folder: Path) -> dict[str, Any]:
        """See ``LayoutConformance``."""
        return small_run(model=dict(self.model), adapter={"name": self.name, **self.values_in(host, folder)})

    def world(self, host: PluginHost) -> PluginHost:
        """The host, with a model and a quantizer to try it on."""
        return hermetic_host(tiny, self.plugin)

    # ------------------------------------------------------------------------------------------------- what it is tried on

    def declared_component(self, host: PluginHost) -> AdapterComponent:
        """The component."""
        component = self.component(host)
        assert isinstance(component, AdapterComponent), "the host checks what mt_adapters returns"
        return component

    def parts(self, host: PluginHost, folder: Path, *, quantized: bool = False) -> trainer.Parts:
        """The parts of a run with it. Raises ``ConfigError`` where it does not go with the quantizer."""
        run = self.run(host, folder)
        raw = {**run, "quantizer": dict(self.quantizer)} if quantized else run
        return trainer.Parts.of(trainer.resolve(raw, self.world(host)))

    def base(self, parts: trainer.Parts) -> TrainModel:
        """The model without it, every weight moved away from zero and one."""
        return base_model(parts)

    def adapted_model(self, parts: trainer.Parts) -> tuple[TrainModel, Adapter]:
        """The model with it, as a run begins."""
        model = self.base(parts)
        return model, begin_adapter(parts, model)

    def resumed_model(self, parts: trainer.Parts, plan: Mapping[str, Any], saved: Mapping[str, Tensor]) -> TrainModel:
        """The model with it as a checkpoint of trained weights gives it: nothing begins anew."""
        model = self.base(parts)
        resume_adapter(parts, model, plan, saved)
        return model

    def batches(self, model: TrainModel, count: int = 1) -> list[Batch]:
        """Rows of numbers that could be tokens; the same ones each time."""
        generator = torch.Generator().manual_seed(3)
        ids = torch.randint(min(200, model.config.vocab_size), (count, 4, TOKENS), generator=generator)
        return [rows_of(each, TOKENS) for each in ids]

    def training(self, parts: trainer.Parts, model: TrainModel, adapter: Adapter, steps: int) -> PlainTraining:
        """Return the adapter's steps in this process."""
        return PlainTraining(parts, model, adapter, rate=self.rate, steps=steps)

    def trained_model(self, parts: trainer.Parts, steps: int = 3) -> tuple[TrainModel, Adapter]:
        """Return model and adapter after some steps, ready to look at."""
        torch.manual_seed(0)
        model, adapter = self.adapted_model(parts)
        self.training(parts, model, adapter, steps).run(self.batches(model, steps))
        return model.eval(), adapter

    def effect(self, host: PluginHost, folder: Path) -> Any:
        """Return losses of three steps, and what is trained afterwards."""
        parts = self.parts(host, folder)
        torch.manual_seed(0)
        model, adapter = self.adapted_model(parts)
        losses = self.training(parts, model, adapter, 3).run(self.batches(model, 3))
        named = dict(model.named_parameters())
        return losses, {name: named[name].detach() for name in adapter.trainable_parameters(model)}
