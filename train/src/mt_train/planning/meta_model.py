"""The model of a run without memory, cut into the stages of its pipeline, and what of it is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from mt_core.nn import Layer, TrainModel
from mt_train.assemble.injection import inject
from mt_train.assemble.model import parameter_groups, use_less_memory
from mt_train.assemble.parts import Parts
from mt_train.assemble.weights import adapter_weights, weights_of
from mt_train.engine.build import build_quantized, stored_layers, without_memory
from mt_train.engine.meta import on_meta
from mt_train.engine.stages import cut
from mt_train.planning.media import media_layers


@dataclass(frozen=True, kw_only=True)
class MetaModel:
    """A model without memory, cut into stages, and what of it is trained. ``quantized``: bytes of weights by name, once they are."""

    model: TrainModel
    bounds: tuple[int, ...]
    groups: list[dict[str, Any]]
    quantized: Mapping[str, int]

    def stages(self) -> list[list[Layer]]:
        """The layers of each stage, those of the first behind what encodes media."""
        layers, media = list(self.model.layers()), media_layers(self.model)
        return [[*(media if start == 0 else []), *layers[start:end]] for start, end in pairwise(self.bounds)]


def build_meta_model(parts: Parts, stages: int, checkpoint: Path | None = None) -> MetaModel:
    """The model with its adapter. Raises ``MtError`` for weights with other names and for a model that cannot be cut."""
    if stages > 1:
        stage = cut(parts.model, parts.pipeline_layers(), stages)
        model, bounds = stage.model, stage.bounds
    else:
        with without_memory():
            model = parts.model()
        bounds = (0, len(model.layers()))
    use_less_memory(model, parts.config.train, lambda text: None)
    names = [name for name, _ in model.named_parameters()]
    weights_of(parts, names, lambda text: None, checkpoint, adapted=True)
    with on_meta():
        adapter = inject(parts, model, checkpoint=checkpoint)
    own = [name for name, _ in model.named_parameters() if name not in set(names)]
    adapter_weights(parts, model, adapter, names, own, checkpoint)
    groups = parameter_groups(parts, model, adapter)
    return MetaModel(model=model, bounds=bounds, groups=groups, quantized=_quantized_bytes(parts))


def _quantized_bytes(parts: Parts) -> dict[str, int]:
    """Found on a model of its own: the activations are those of the dense layers, which fake tensors can run."""
    quantizer = parts.quantizer()
    if quantizer is None:
        return {}
    layers = stored_layers(build_quantized(parts.model, quantizer, torch.device("meta")))
    return {f"{name}.weight": layer.stored_bytes for name, layer in layers}
