"""Encoders of transformers, by their own code.

Shapes: I items, L tokens of the longest item, T features of an image, N features of all items, W width of a feature.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor, nn

from mt_core.nn import Encoder

from .build import build_theirs
from .config import HfConfig, HfImageConfig, HfSequenceConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class HfEncoder(Encoder):
    """Transformers' encoder as ``model``, with the names that its parameters have there."""

    def __init__(self, config: HfConfig) -> None:
        super().__init__()
        self.model: PreTrainedModel = build_theirs(config)
        self._tables = {name: each.float() for name, each in self.model.named_buffers() if each.is_floating_point()}
        """Wavelengths of positions: a cast of the model rounds its buffers, and nothing would say so."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the parameters."""
        found: torch.dtype = next(self.model.parameters()).dtype
        return found

    def restore_tables(self, device: torch.device) -> None:
        """Give buffers back what a cast has rounded."""
        for name, table in self._tables.items():
            path, _, own = name.rpartition(".")
            module = self.model.get_submodule(path)
            if module._buffers[own].dtype != torch.float32:
                module._buffers[own] = table.to(device)

    def init_tensor(self, name: str, tensor: Tensor, generator: Generator) -> None:
        """Fill one parameter in place: factors of channels are 1."""
        if "lambda" in name:
            tensor.fill_(1.0)
        else:
            super().init_tensor(name, tensor, generator)


class HfImageEncoder(HfEncoder):
    """Pixels of all images at once to a feature of each patch."""

    def __init__(self, config: HfImageConfig) -> None:
        super().__init__(config)
        self.before = config.type.features_before(config.content)
        self.keep_class = config.keep_class

    def forward(self, inputs: Mapping[str, Tensor], features: Sequence[int]) -> Tensor:
        """``pixels`` (I, 3, S, S) -> (N, W), image by image."""
        pixels = inputs["pixels"].to(self.dtype)
        self.restore_tables(pixels.device)
        hidden_ITW = self.model(pixel_values=pixels).last_hidden_state
        patches_ITW = hidden_ITW[:, self.before :]
        kept_ITW = torch.cat([hidden_ITW[:, :1], patches_ITW], dim=1) if self.keep_class else patches_ITW
        out_NW: Tensor = kept_ITW.flatten(0, 1)
        assert len(out_NW) == sum(features), f"{len(out_NW)} features for the {sum(features)} that were measured"
        return out_NW


class HfSequenceEncoder(HfEncoder):
    """Ids of all items, padded to the longest one, to a feature of each token."""

    def __init__(self, config: HfSequenceConfig) -> None:
        super().__init__(config)
        vocabulary = config.make_processor().vocabulary
        self.front, self.behind = len(vocabulary.front), len(vocabulary.behind)
        self.keep_special = config.keep_special
        self.pad = int(config.content.get("pad_token_id") or 0)

    def forward(self, inputs: Mapping[str, Tensor], features: Sequence[int]) -> Tensor:
        """``ids``, one after another -> (N, W), item by item."""
        ids = inputs["ids"]
        self.restore_tables(ids.device)
        around = 0 if self.keep_special else self.front + self.behind
        lengths = [each + around for each in features]
        assert len(ids) == sum(lengths), f"{len(ids)} ids for the {sum(lengths)} that were measured"
        longest, first = max(lengths), 0 if self.keep_special else self.front
        places = [item * longest + place for item, length in enumerate(lengths) for place in range(length)]
        own = [item * longest + first + place for item, count in enumerate(features) for place in range(count)]
        places_N, own_N = (torch.tensor(each, device=ids.device) for each in (places, own))
        ids_IL = ids.new_full((len(lengths) * longest,), self.pad).index_put((places_N,), ids).view(-1, longest)
        mask_IL = torch.zeros_like(ids_IL).flatten().index_fill(0, places_N, 1).view(-1, longest)
        hidden_ILW: Tensor = self.model(input_ids=ids_IL, attention_mask=mask_IL).last_hidden_state
        return hidden_ILW.flatten(0, 1)[own_N]


def build_module(config: HfConfig) -> nn.Module:
    """Return the encoder of a config, by its kind."""
    if isinstance(config, HfImageConfig):
        return HfImageEncoder(config)
    assert isinstance(config, HfSequenceConfig), "there are two kinds"
    return HfSequenceEncoder(config)
