"""A model with an adapter in this process: its base, as a run begins it, and as a checkpoint gives it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mt_conformance import trainer
from mt_conformance.weights import fill_weights
from mt_core.adapters import adapted_layers
from mt_core.adapters.base import Adapter
from mt_core.errors import UsageError
from mt_core.nn import TrainModel


@cache
def single_process() -> trainer.Process:
    """One process on the CPU."""
    return trainer.Process(0, 1, 0, torch.device("cpu"))


def base_model(parts: trainer.Parts) -> TrainModel:
    """The model of a run without its adapter, every weight moved away from zero and one; quantized where the run has a quantizer."""
    quantizer = parts.quantizer()
    plain = fill_weights(parts.model(), wide=True)
    if quantizer is None:
        return plain
    model = trainer.build_quantized(parts.model, quantizer, single_process().device)
    source = {name: each.detach().clone for name, each in plain.named_parameters()}
    trainer.fill_model(model, source, seed=0, process=single_process())
    return model


def begin_adapter(parts: trainer.Parts, model: TrainModel) -> Adapter:
    """Give the model its adapter, as a run begins; return that."""
    names = trainer.weight_names(model)
    adapter = trainer.inject(parts, model, probe=lambda: probe_of_run(parts, model))
    trainer.start(parts, model, adapter, names, process=single_process())
    return adapter


def resume_adapter(
    parts: trainer.Parts, model: TrainModel, plan: Mapping[str, Any], saved: Mapping[str, Tensor]
) -> None:
    """Give the model its adapter as a checkpoint of trained weights has it: nothing begins anew."""
    adapter = parts.adapter()
    adapter.plan = json.loads(json.dumps(dict(plan)))
    adapter.inject(model)
    model.load_state_dict(saved, strict=False)


def probe_of_run(parts: trainer.Parts, model: TrainModel) -> Any:
    """Return the probe that looks at the rows of the run."""
    plan = trainer.make_plan(parts.config, world=1, device="cpu", offers=parts.offers.values())
    return trainer.probe_of(parts.config, trainer.build_data(parts), plan, single_process(), model)


def check_merge_refused(model: TrainModel) -> None:
    """Raise ``AssertionError`` for a layer that merges."""
    for name, layer in adapted_layers(model):
        try:
            layer.merge()
        except UsageError:
            return
        raise AssertionError(f"it declares mergeable=False, and {name} merges; raise UsageError in merged_weight")
