"""NEFTune: noise on the embeddings while training (https://arxiv.org/abs/2310.05914).

Shapes: B rows, T tokens, D model width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from mt_core import CallbackContext, MtConfig

if TYPE_CHECKING:
    from torch import Tensor


class NeftuneConfig(MtConfig):
    """Amount of noise."""

    alpha: float = Field(
        5.0, gt=0, description="noise is uniform within alpha / sqrt(tokens of the document × model width)"
    )


class Neftune:
    """Adds the noise behind the embedding, in training only. It is drawn from torch's generator, whose state is resumed."""

    adds_noise = True

    def __init__(self, config: NeftuneConfig) -> None:
        self._alpha = config.alpha
        self._lengths_BT: Tensor | None = None

    def on_model_built(self, context: CallbackContext) -> None:
        """Stand behind the embedding."""
        model = context.model
        model.register_forward_pre_hook(self._see)
        model.layers()[0].module.register_forward_hook(self._add)

    def _see(self, model: Any, inputs: tuple[Any, ...]) -> None:
        """Each token's document length: packed documents are as noisy as they would be alone. Padding counts to the last one."""
        if model.training:
            self._lengths_BT = inputs[0].document_spans().float()

    def _add(self, embedding: Any, inputs: tuple[Any, ...], hidden_BTD: Tensor) -> Tensor:
        if not embedding.training or self._lengths_BT is None:
            return hidden_BTD
        scale_BT1 = self._alpha / (self._lengths_BT * hidden_BTD.shape[-1]).sqrt().unsqueeze(-1)
        noise_BTD = hidden_BTD.new_empty(hidden_BTD.shape).uniform_(-1, 1)
        return hidden_BTD + noise_BTD * scale_BT1.to(hidden_BTD.dtype)
