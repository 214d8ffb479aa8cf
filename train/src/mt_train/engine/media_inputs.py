"""The encoders of a run as a part of its model, ``TrainModel.media``: their projected features stand in the rows.

Shapes: B rows, T tokens, D model width, M projected features of all items, N features of all items, W width of a feature.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Generator, Tensor, nn

from mt_core.nn import Encoder, MediaBatch, Projector
from mt_core.nn.media import Level


class ProjectedEncoder(nn.Module):
    """An encoder with its projector: ``encoder`` and ``projector``."""

    def __init__(self, encoder: Encoder, projector: Projector) -> None:
        super().__init__()
        self.encoder = encoder
        self.projector = projector

    def forward(self, media: MediaBatch) -> Tensor:
        """Return (M, D). Nothing is kept for a backward of an encoder that trains nothing, which is in evaluation mode then."""
        features_NW = self._encode(media) if media.stored_NW is None else media.stored_NW
        weight = next(self.projector.parameters(), features_NW)
        return self.projector(features_NW.to(weight.dtype), media.features, media.grids)  # type: ignore[no-any-return]

    def _encode(self, media: MediaBatch) -> Tensor:
        assert media.inputs is not None, "a batch is read before it is encoded"
        trains = any(parameter.requires_grad for parameter in self.encoder.parameters())
        if not trains and self.encoder.training:
            self.encoder.eval()
        with torch.set_grad_enabled(trains and torch.is_grad_enabled()):
            return self.encoder(media.inputs, media.features)  # type: ignore[no-any-return]


class MediaInputs(nn.ModuleDict):
    """The encoders of a model, by their names in the run."""

    @property
    def levels(self) -> int:
        """Blocks behind which projectors add something: a pipeline is not cut before they have run."""
        return max(each.projector.levels for each in self.children() if isinstance(each, ProjectedEncoder))

    def forward(self, hidden_BTD: Tensor, media: Mapping[str, MediaBatch]) -> tuple[Tensor, list[Level]]:
        """(B, T, D) -> (B, T, D), where projected features stand in the places of media, and what is added behind blocks.

        Every encoder is called exactly once. Outside of training a batch may have no media at all, as that of one more token has: then
        none is called.
        """
        if not media and not self.training:
            return hidden_BTD, []
        levels = list[Level]()
        flat = hidden_BTD.flatten(0, 1)
        for name, encoder in self.items():
            assert name in media, f"the batch has no media of {name!r}: whoever collates it adds a dummy"
            batch = media[name]
            projected = encoder(batch).to(flat.dtype)[batch.rows_M]
            flat = flat.index_put((batch.places_M,), projected[:, : flat.shape[1]])
            if projected.shape[1] > flat.shape[1]:
                levels.append((batch.places_M, projected[:, flat.shape[1] :].unflatten(1, (-1, flat.shape[1]))))
        return flat.view_as(hidden_BTD), levels

    def init_tensor(self, name: str, tensor: Tensor, generator: Generator) -> None:
        """Fill one parameter in place, by the name that it has in this module."""
        encoder, part, rest = name.split(".", 2)
        self[encoder].get_submodule(part).init_tensor(rest, tensor, generator)  # type: ignore[operator]
