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
from .config import HfAudioConfig, HfConfig, HfImageConfig, HfSequenceConfig
from .types import Kind

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
        self.pad = config.pad

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


class HfAudioEncoder(HfEncoder):
    """Samples of all items, padded to the longest one, to a feature of each window."""

    def __init__(self, config: HfAudioConfig) -> None:
        super().__init__(config)
        self.windows = config.windows
        first = self.model.get_submodule("feature_extractor.conv_layers.0")
        if isinstance(norm := getattr(first, "layer_norm", None), nn.GroupNorm):
            first.layer_norm = MaskedGroupNorm(norm)

    def forward(self, inputs: Mapping[str, Tensor], features: Sequence[int]) -> Tensor:
        """``samples``, one after another, and ``lengths`` (I) -> (N, W), item by item. Nothing waits for the lengths on a device.

        What stands behind the end of a sound is seen by no window of its own, and the others are masked.
        """
        samples, lengths_I = inputs["samples"].to(self.dtype), inputs["lengths"]
        longest = self.windows.most_samples(max(features))
        starts_I = lengths_I.cumsum(0) - lengths_I
        places_S = torch.arange(longest, device=samples.device)
        mask_IS = places_S < lengths_I[:, None]
        rows_IS = (starts_I[:, None] + places_S).clamp(max=len(samples) - 1)
        for module in self.model.modules():
            if isinstance(module, MaskedGroupNorm):
                module.lengths = (lengths_I - self.windows.kernels[0]) // self.windows.strides[0] + 1
        hidden_ITW: Tensor = self.model(samples[rows_IS], attention_mask=mask_IS.long()).last_hidden_state
        own = [item * hidden_ITW.shape[1] + place for item, count in enumerate(features) for place in range(count)]
        return hidden_ITW.flatten(0, 1)[torch.tensor(own, device=samples.device)]


class MaskedGroupNorm(nn.Module):
    """A group norm with one channel a group, over each sound's own length: that of transformers adds up padding."""

    def __init__(self, norm: nn.GroupNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps
        self.lengths: Tensor | None = None

    def forward(self, x_ICT: Tensor) -> Tensor:
        """(I, C, T) -> (I, C, T), in fp32 up to scale and shift."""
        assert self.lengths is not None, "the encoder says how long its sounds are"
        lengths_I11 = self.lengths[:, None, None]
        mask_I1T = torch.arange(x_ICT.shape[2], device=x_ICT.device) < lengths_I11
        own_ICT = x_ICT.float() * mask_I1T
        mean_IC1 = own_ICT.sum(2, keepdim=True) / lengths_I11
        centred_ICT = (own_ICT - mean_IC1) * mask_I1T
        variance_IC1 = centred_ICT.square().sum(2, keepdim=True) / lengths_I11
        normed_ICT = (centred_ICT * torch.rsqrt(variance_IC1 + self.eps)).to(x_ICT.dtype)
        return normed_ICT * self.weight[:, None] + self.bias[:, None]


ENCODERS: Mapping[Kind, type[HfEncoder]] = {
    "audio": HfAudioEncoder,
    "image": HfImageEncoder,
    "sequence": HfSequenceEncoder,
}
"""Kind of what is read → its encoder."""
