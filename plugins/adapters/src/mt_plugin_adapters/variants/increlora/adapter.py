"""IncreLoRA's work around an update: the orthogonal term, importances, growth."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from mt_core import AdapterContext
from mt_core.adapters import LinearAdapter, Place
from mt_core.nn import TrainModel

from ...importance import importance
from ..adalora.layer import orthogonal_gradient
from .config import IncreLoraConfig
from .layer import IncreLoraLinear


class IncreLora(LinearAdapter[IncreLoraConfig]):
    """Trains A, B and λ."""

    def __init__(self, config: IncreLoraConfig) -> None:
        super().__init__(config)
        self.seen: dict[str, Tensor] = {}  # of the update that is being made

    def layer(self, base: nn.Module, place: Place) -> IncreLoraLinear:
        """See ``LinearAdapter``."""
        config, name = self.config, place.name
        return IncreLoraLinear(
            base,
            first=config.rank_of(name),
            room=min(config.max_rank, int(base.in_features), int(base.out_features)),  # type: ignore[arg-type]
            reserve=config.grow_by,
            alpha=config.alpha_of(name),
            root=config.rslora,
            dropout=config.dropout,
            fp32=config.fp32,
        )

    def inject(self, model: TrainModel) -> None:
        """See ``Adapter``. Layers gather what they see in steps alone."""
        super().inject(model)
        for module in model.modules():
            if isinstance(module, IncreLoraLinear):
                module.sums = model.sums

    def after_backward(self, context: AdapterContext) -> None:
        """Add the gradient of the orthogonal term, and see how much every layer matters."""
        self.seen = {}
        for name, layer in _layers(context):
            a_RE, b_FR, value_R = (context.read(f"{name}.{part}") for part in layer.trained)
            mask_R = context.read(f"{name}.rank_mask").float()
            if self.config.orthogonality:
                used_R = (mask_R + value_R.abs() > 0).float()
                self._hold(context, f"{name}.lora_A", a_RE, used_R)
                self._hold(context, f"{name}.lora_B", b_FR.mT, used_R)
            gradient_FE, layer.gathered = layer.gathered, None
            if gradient_FE is not None:
                whole_FE = context.total(gradient_FE)
                self.seen[name] = layer.sensitivity(whole_FE, a_RE, b_FR, value_R, mask_R)

    def _hold(self, context: AdapterContext, name: str, rows: Tensor, used_R: Tensor) -> None:
        """Add the orthogonal term's gradient, of the ranks that it has and those in reserve."""
        term = torch.zeros_like(rows)
        term[used_R > 0] = self.config.orthogonality * orthogonal_gradient(rows[used_R > 0])
        context.write(name, context.read(name, "gradient") + (term if name.endswith("lora_A") else term.mT), "gradient")

    def after_step(self, context: AdapterContext) -> None:
        """Remember what was seen of the update that is done, and grow."""
        layers = dict(_layers(context))
        if not any(layer.watched for layer in layers.values()):
            return
        masks = [context.read(f"{name}.rank_mask").sum() for name in layers]
        counts = {name: int(count) for name, count in zip(layers, torch.stack(masks).tolist(), strict=True)}
        left = self.config.target_rank * len(layers) - sum(counts.values())
        if left > 0:
            scores = {name: self._importance(context, name) for name in layers}
            if context.step > self.config.warmup_steps and context.step % self.config.every_steps == 0:
                left = self._grow(context, layers, counts, scores, left)
        if left <= 0 or all(counts[name] == layer.room for name, layer in layers.items()):
            self._end(context, layers)

    def _importance(self, context: AdapterContext, name: str) -> Tensor:
        """Return the importance of a layer, with what this step has shown of it."""
        keys, config = (f"{name}.importance", f"{name}.uncertainty"), self.config
        decays = {"decay": config.importance_decay, "uncertainty_decay": config.uncertainty_decay}
        return importance(context, keys, self.seen.pop(name, None), **decays)

    def _grow(
        self,
        context: AdapterContext,
        layers: dict[str, IncreLoraLinear],
        counts: dict[str, int],
        scores: dict[str, Tensor],
        left: int,
    ) -> int:
        """Give the most important layers with room their reserve, and a new one; of equal ones the first. What is left then."""
        growing = [name for name, layer in layers.items() if counts[name] < layer.room]
        for name in sorted(growing, key=lambda each: float(scores[each]), reverse=True)[: self.config.top]:
            layer = layers[name]
            more = min(self.config.grow_by, layer.room - counts[name], left)
            if more == 0:
                break
            counts[name] += more
            left -= more
            mask_R = torch.arange(layer.room) < counts[name]
            value_R = context.read(f"{name}.lora_E")
            fresh_R = layer.reserved_scales(counts[name]).to(value_R)
            context.write(f"{name}.rank_mask", mask_R.to(value_R))
            context.write(f"{name}.lora_E", torch.where(mask_R.to(value_R.device), value_R, fresh_R))
        return left

    def _end(self, context: AdapterContext, layers: dict[str, IncreLoraLinear]) -> None:
        """No rank is to come: those in reserve add nothing, and gradients of ΔW are looked at no more."""
        for name, layer in layers.items():
            mask_R = context.read(f"{name}.rank_mask").float()
            context.write(f"{name}.lora_E", context.read(f"{name}.lora_E") * mask_R)
            layer.watched = False


def _layers(context: AdapterContext) -> Iterator[tuple[str, IncreLoraLinear]]:
    return ((name, module) for name, module in context.modules() if isinstance(module, IncreLoraLinear))
