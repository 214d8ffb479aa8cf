"""Counts that several layouts of a run share, each made once: the model cut into stages, and what its layers hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mt_core.errors import MtError
from mt_core.media import Processor
from mt_core.nn import Router, TokenwiseMLP, TrainModel
from mt_train.assemble.parts import Parts
from mt_train.engine.plan import Plan
from mt_train.engine.precision import DTYPES
from mt_train.planning.activations import imitate_run, layer_activations
from mt_train.planning.contents import contents
from mt_train.planning.media import media_activations
from mt_train.planning.memory import Content, LayerActivations
from mt_train.planning.meta_model import MetaModel, build_meta_model


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Numbers of each layer of a model, and how many of them are trained; layers with experts, and how many of these a token chooses;
    ``width`` of what the head multiplies; ``tiled``: numbers of MLPs that compute some tokens at a time (``train.mlp_tile_tokens``)."""

    layers: tuple[int, ...]
    trained: tuple[int, ...]
    mixtures: int
    chosen: int
    width: int
    tiled: int


def measure_shape(model: TrainModel) -> Shape:
    """Return the shape of a model."""
    parameters = [list(layer.module.parameters()) for layer in model.layers()]
    routers = [module for module in model.modules() if isinstance(module, Router)]
    mlps = [each for each in model.modules() if isinstance(each, TokenwiseMLP) and each.tile_tokens is not None]
    return Shape(
        layers=tuple(sum(each.numel() for each in layer) for layer in parameters),
        trained=tuple(sum(each.numel() for each in layer if each.requires_grad) for layer in parameters),
        mixtures=len(routers),
        chosen=max((router.options.top_k for router in routers), default=0),
        width=max((each.shape[-1] for each in parameters[-1] if each.dim() == 2), default=1),
        tiled=sum(each.numel() for mlp in mlps for each in mlp.parameters()),
    )


class Counts:
    """Models without memory and the numbers of their layers, kept by what they depend on."""

    def __init__(self, parts: Parts, checkpoint: Path | None) -> None:
        self._parts, self._checkpoint = parts, checkpoint
        self._metas: dict[int, MetaModel | MtError] = {}
        self._shapes: dict[int, Shape] = {}
        self._contents: dict[tuple[object, ...], list[Content]] = {}
        self._layers: dict[tuple[object, ...], list[LayerActivations] | None] = {}
        self._media: dict[tuple[object, ...], int | None] = {}

    def meta(self, stages: int) -> MetaModel:
        """Return the model cut into so many stages. Raises ``MtError`` for one that cannot be, or whose weights have other names."""
        if stages not in self._metas:
            try:
                self._metas[stages] = build_meta_model(self._parts, stages, self._checkpoint)
            except MtError as error:  # asked again for each layout with so many stages
                self._metas[stages] = error
        found = self._metas[stages]
        if isinstance(found, MtError):
            raise found
        return found

    def shape(self, stages: int) -> Shape:
        """Return the sizes of a model's layers, which are the same however it is cut."""
        if stages not in self._shapes:
            self._shapes[stages] = measure_shape(self.meta(stages).model)
        return self._shapes[stages]

    def contents(self, plan: Plan) -> list[Content]:
        """Return the numbers that the ranks of each stage have."""
        key = (plan.pipeline, plan.expert, plan.zero_stage > 0)
        if key not in self._contents:
            self._contents[key] = contents(self._parts, plan, self.meta(plan.pipeline))
        return self._contents[key]

    def layers(self, plan: Plan, tokens: int) -> Sequence[LayerActivations] | None:
        """Return what each layer keeps of a micro-batch of so many tokens a row on a rank; ``None`` where that cannot be counted."""
        layers = self.meta(plan.pipeline).model.layers()
        hooked = plan.zero_stage == 3
        key = (len(layers), plan.micro_batch_size, tokens, plan.dtype, hooked)
        if key not in self._layers:
            dtype, has_kernels = DTYPES[plan.dtype], self._parts.config.train.kernels == "liger"
            with imitate_run(layers, hooked=hooked, has_kernels=has_kernels):
                self._layers[key] = layer_activations(layers, rows=plan.micro_batch_size, tokens=tokens, dtype=dtype)
        return self._layers[key]

    def media(self, plan: Plan, processors: Mapping[str, Processor], features: Mapping[str, int]) -> int | None:
        """Return what encoders keep of so many features each; ``None`` where that cannot be counted."""
        key = (plan.pipeline, plan.dtype, *sorted(features.items()))
        if key not in self._media:
            model = self.meta(plan.pipeline).model
            self._media[key] = media_activations(model, processors, features, DTYPES[plan.dtype])
        return self._media[key]
