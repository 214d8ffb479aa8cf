"""AdaLoRA's work around an update: the orthogonal term, importances, pruning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from math import isclose

import torch
from torch import Tensor, nn

from mt_core import AdapterContext
from mt_core.adapters import LinearAdapter, PeftForm, Place, adapted_layers, form_of_type
from mt_core.nn import TrainModel

from ...importance import importance
from .budget import Budget
from .config import AdaLoraConfig
from .layer import PARTS, AdaLoraLinear, orthogonal_gradient, rank_scores

_OF_TRAINING = ("beta1", "beta2", "deltaT", "orth_reg_weight", "r", "target_r", "tfinal", "tinit", "total_step")
"""Keys of peft's config that change no output; ``r`` is LoRA's, which it reads over."""


class AdaLora(LinearAdapter[AdaLoraConfig]):
    """Trains P, Λ and Q."""

    def __init__(self, config: AdaLoraConfig) -> None:
        super().__init__(config)
        self.sensitivities: dict[str, Tensor] = {}  # of the update that is being made
        self.settled = False

    def layer(self, base: nn.Module, place: Place) -> AdaLoraLinear:
        """See ``LinearAdapter``."""
        return AdaLoraLinear.of(base, place, self.config)

    def peft_form(self, model: TrainModel) -> PeftForm | None:
        """ADALORA, where all layers have the scale of the first rank, and no more ranks; importances and masks stand beside."""
        config = self.config
        layers = {name: layer for name, layer in adapted_layers(model) if isinstance(layer, AdaLoraLinear)}
        if any(not isclose(layer.scale, config.alpha / config.rank) for layer in layers.values()):
            return None
        ranks = {name: len(layer.lora_E) for name, layer in layers.items()}
        if max(ranks.values()) > config.rank:
            return None
        form = form_of_type(
            "ADALORA",
            model,
            {part: part for part in PARTS},
            transposes=True,
            training=_OF_TRAINING,
            init_r=config.rank,
            lora_alpha=config.alpha,
            lora_dropout=config.dropout,
            target_r=config.target_rank,
            rank_pattern=_masks(ranks, config.rank),
            total_step=1,  # there has to be one; whoever trains on with peft says which
        )
        beside = {
            f"{name}.{each}": partial(_first, each, value)
            for name, layer in layers.items()
            for each, value in layer.own_parameters()
            if each not in PARTS
        }
        return replace(
            form,
            shapes={f"{name}.lora_E": (rank, 1) for name, rank in ranks.items()},
            beside=frozenset(beside),
            defaults=beside,
        )

    def after_backward(self, context: AdapterContext) -> None:
        """Add the gradient of the orthogonal term, and look at all gradients before they are clipped."""
        self.sensitivities = {}
        counts = context.step < self._budget(context).last
        for name in (f"{layer}.{part}" for layer, _ in _layers(context) for part in PARTS):
            weight, gradient = context.read(name), context.read(name, "gradient")
            if self.config.orthogonality and not name.endswith("lora_E"):
                turned = orthogonal_gradient(weight) if name.endswith("lora_A") else orthogonal_gradient(weight.mT).mT
                gradient += self.config.orthogonality * turned
                context.write(name, gradient, "gradient")
            if counts:
                self.sensitivities[name] = (weight * gradient).abs_()

    def after_step(self, context: AdapterContext) -> None:
        """Remember what was seen of the update that is done, and prune."""
        budget = self._budget(context)
        due, scores = budget.prunes(context.step) or self._is_late(context, budget), {}
        for layer, _ in _layers(context):
            looks = due or context.step <= budget.last
            parts = {part: self._importance(context, layer, part) for part in PARTS} if looks else {}
            if due:
                scores[layer] = rank_scores(parts)
        if scores:
            self._choose(context, scores, budget.ranks(context.step))
        if context.step > budget.last or scores:
            for layer, _ in _layers(context):
                context.write(f"{layer}.lora_E", context.read(f"{layer}.lora_E") * context.read(f"{layer}.rank_mask"))

    def _is_late(self, context: AdapterContext, budget: Budget) -> bool:
        """Return whether the last pruning is still to come, as its own update was refused."""
        if self.settled or context.step <= budget.last:
            return False
        self.settled = True
        return sum(float(context.read(f"{layer}.rank_mask").sum()) for layer, _ in _layers(context)) > budget.end

    def _importance(self, context: AdapterContext, layer: str, part: str) -> Tensor:
        """Return the importance of every number of a part, with what this step has shown of it."""
        keys = (f"{layer}.sensitivity_{part}", f"{layer}.uncertainty_{part}")
        seen, config = self.sensitivities.pop(f"{layer}.{part}", None), self.config
        decays = {"decay": config.sensitivity_decay, "uncertainty_decay": config.uncertainty_decay}
        return importance(context, keys, seen, **decays)

    def _choose(self, context: AdapterContext, scores: dict[str, Tensor], ranks: int) -> None:
        """Mark the most important ranks of all layers; of equal ones, those that come first."""
        order = torch.cat(list(scores.values())).sort(descending=True, stable=True).indices
        kept = torch.zeros(len(order), device=order.device)
        kept[order[:ranks]] = 1.0
        for layer, part in zip(scores, torch.split(kept, [len(each) for each in scores.values()]), strict=True):
            context.write(f"{layer}.rank_mask", part)

    def _budget(self, context: AdapterContext) -> Budget:
        ranks = [self.config.rank_of(name) for name, _ in _layers(context)]
        return Budget.of(self.config, context.total_steps, sum(ranks), len(ranks))


def _masks(ranks: Mapping[str, int], most: int) -> dict[str, list[bool]] | None:
    """Return which of the first ranks are left, as peft says it; ``None`` where all are."""
    fewer = {f"{name}.lora_E": [place < rank for place in range(most)] for name, rank in ranks.items() if rank < most}
    return fewer or None


def _first(name: str, like: Tensor) -> Tensor:
    """Return what is known before any update: nothing of the importances, and that no rank is pruned."""
    return torch.full(like.shape, 1.0 if name == "rank_mask" else 0.0, dtype=like.dtype)


def _layers(context: AdapterContext) -> Iterator[tuple[str, AdaLoraLinear]]:
    return ((name, module) for name, module in context.modules() if isinstance(module, AdaLoraLinear))
