"""Encoders with drawn weights, and what all of them promise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mt_core.media import MediaItem
from mt_core.nn import Encoder
from mt_plugin_bio.plugin import mt_encoders

COMPONENTS = {each.name: each for each in mt_encoders()}


def drawn(name: str, config: Any, seed: int = 0) -> Encoder:
    """An encoder whose parameters are drawn as a run draws them, in evaluation mode."""
    encoder = COMPONENTS[name].build(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter, tensor in encoder.named_parameters():
            encoder.init_tensor(parameter, tensor, generator)
    return encoder.eval()


def noisy(encoder: Encoder, seed: int = 1) -> Encoder:
    """The encoder with every parameter moved, so that no bias is 0, no norm 1 and no two frequencies the same."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in encoder.parameters():
            tensor.add_(torch.randn(tensor.shape, generator=generator), alpha=0.1)
    return encoder


def ids_of(name: str, config: Any, content: bytes) -> Tensor:
    """Ids as the component's processor reads them."""
    return torch.from_numpy(COMPONENTS[name].processor(config).read(MediaItem(name, content=content))["ids"])


def together(encoder: Encoder, items: Sequence[Tensor]) -> list[Tensor]:
    """Features of each item, all encoded in one call."""
    lengths = [len(ids) for ids in items]
    return list(encoder({"ids": torch.cat(list(items))}, lengths).split(lengths))
