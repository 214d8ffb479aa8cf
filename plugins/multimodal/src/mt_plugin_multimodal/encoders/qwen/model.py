"""Vision towers of Qwen2.5-VL (https://arxiv.org/abs/2502.13923) and Qwen3-VL (https://arxiv.org/abs/2511.21631).

Names of parameters are those of the published checkpoints. Patches of all images lie one behind another; where they see one another they
are gathered into a rectangle, a row for each image or window, so that a call makes the same operations whatever the images are.

Shapes: N patches of all images, C values of a patch, W width, H heads, A channels of a head, F its angles, G groups, K places of a group,
V windows, P entries of a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from mt_core.nn import Encoder, GatedMLP, RMSNorm

from ...patches import FRAMES
from . import Qwen3VLConfig, Qwen25VLConfig, Shape, TowerConfig

EPS = 1e-6
THETA = 10_000.0


class Groups(NamedTuple):
    """Patches that see one another: those of each group, which of its places are filled, and where each patch stands among all places."""

    patches_GK: Tensor
    filled_GK: Tensor
    places_N: Tensor

    @classmethod
    def of(cls, patches_GK: Tensor, filled_GK: Tensor, patches: int) -> Groups:
        """Return groups of ``patches`` in all. Nothing is waited for: sizes follow from shapes."""
        every = torch.arange(patches_GK.numel(), device=patches_GK.device)
        to = torch.where(filled_GK, patches_GK, patches).flatten()  # what is not filled goes behind the last
        places = to.new_zeros(patches + 1).scatter_(0, to, every)
        return cls(patches_GK.clamp(0, patches - 1), filled_GK, places[:patches])


def images(features: Sequence[int], device: torch.device) -> Groups:
    """Every image is a group."""
    counts, longest = np.array(features), max(features)
    inside = np.arange(longest)[None] + (counts.cumsum() - counts)[:, None]
    filled = np.arange(longest)[None] < counts[:, None]
    return Groups.of(torch.from_numpy(inside).to(device), torch.from_numpy(filled).to(device), int(counts.sum()))


def windows(inputs: Mapping[str, Tensor], features: Sequence[int]) -> Groups:
    """Every window is a group: the numbers of its patches count in its own image."""
    patches_VK, counts = inputs["windows"], np.array(features)
    starts = torch.from_numpy(counts.cumsum() - counts).to(patches_VK.device)
    image_V = inputs["begins"].long().cumsum(0) - 1
    return Groups.of(patches_VK + starts[image_V][:, None], patches_VK >= 0, int(counts.sum()))


class PatchEmbed(nn.Module):
    """A matrix for each patch."""

    def __init__(self, shape: Shape, *, bias: bool) -> None:
        super().__init__()
        self.proj = _PatchMatrix(shape, bias=bias)

    def forward(self, pixels_NC: Tensor) -> Tensor:
        """(N, C) -> (N, W)."""
        return self.proj(pixels_NC)  # type: ignore[no-any-return]


class _PatchMatrix(nn.Module):
    """A convolution whose kernel is as large as its input, with the shape that it has in files."""

    def __init__(self, shape: Shape, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape.width, 3, FRAMES, shape.patch, shape.patch))
        self.bias = nn.Parameter(torch.empty(shape.width)) if bias else None

    def forward(self, pixels_NC: Tensor) -> Tensor:
        return functional.linear(pixels_NC.to(self.weight.dtype), self.weight.flatten(1), self.bias)


class Attention(nn.Module):
    """Patches of a group see one another."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.proj = nn.Linear(shape.width, shape.width)

    def forward(self, x_NW: Tensor, turn: tuple[Tensor, Tensor], groups: Groups) -> Tensor:
        """(N, W) -> (N, W)."""
        q_NHA, k_NHA, v_NHA = self.qkv(x_NW).unflatten(1, (3, self.heads, -1)).unbind(1)
        q_NHA, k_NHA = rotate(q_NHA, *turn), rotate(k_NHA, *turn)
        q, k, v = (each[groups.patches_GK].transpose(1, 2) for each in (q_NHA, k_NHA, v_NHA))
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=groups.filled_GK[:, None, None])
        mixed_NHA = mixed.transpose(1, 2).flatten(0, 1)[groups.places_N]
        return self.proj(mixed_NHA.flatten(1))  # type: ignore[no-any-return]


def rotate(x_NHA: Tensor, cos_N1F: Tensor, sin_N1F: Tensor) -> Tensor:
    """Turn channel i with channel i + F, in fp32."""
    first, second = x_NHA.float().chunk(2, -1)
    turned = torch.cat([first * cos_N1F - second * sin_N1F, second * cos_N1F + first * sin_N1F], -1)
    return turned.to(x_NHA.dtype)


def turns(cells_N2: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of each patch's angles, (N, 1, F) in fp32: half of them by row, half by column."""
    exponents = torch.arange(0, width // 2, 2, dtype=torch.float32, device=cells_N2.device) / (width // 2)
    angles_N1F = (cells_N2[..., None].float() * (1.0 / THETA**exponents)).flatten(1)[:, None]
    return angles_N1F.cos(), angles_N1F.sin()


class MLP(nn.Module):
    """Two matrices with GELU between."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(shape.width, shape.mlp)
        self.linear_fc2 = nn.Linear(shape.mlp, shape.width)

    def forward(self, x_NW: Tensor) -> Tensor:
        """(N, W) -> (N, W)."""
        return self.linear_fc2(functional.gelu(self.linear_fc1(x_NW), approximate="tanh"))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and MLP, each behind a norm and added to its input."""

    def __init__(self, shape: Shape, *, gated: bool) -> None:
        super().__init__()
        norm = partial(RMSNorm, eps=EPS) if gated else partial(nn.LayerNorm, eps=EPS)
        self.norm1, self.norm2 = norm(shape.width), norm(shape.width)
        self.attn = Attention(shape)
        self.mlp = GatedMLP(shape.width, shape.mlp, bias=True) if gated else MLP(shape)

    def forward(self, x_NW: Tensor, turn: tuple[Tensor, Tensor], groups: Groups) -> Tensor:
        """(N, W) -> (N, W)."""
        x_NW = x_NW + self.attn(self.norm1(x_NW), turn, groups)
        return x_NW + self.mlp(self.norm2(x_NW))  # type: ignore[no-any-return]


class QwenTower(Encoder):
    """Patches of all images at once to features, row by row; those of several blocks side by side, the last one's first.

    Qwen2.5-VL has RMSNorm, gated MLPs and windows; Qwen3-VL LayerNorm, GELU and learned positions.
    """

    def __init__(self, config: TowerConfig) -> None:
        super().__init__()
        shape, table = config.shape, config.table if isinstance(config, Qwen3VLConfig) else None
        self.shape = shape
        self.patch_embed = PatchEmbed(shape, bias=table is not None)
        self.pos_embed = None if table is None else nn.Embedding(table**2, shape.width)
        self.blocks = nn.ModuleList(Block(shape, gated=table is None) for _ in range(config.depth))
        self.in_windows = isinstance(config, Qwen25VLConfig)

    def forward(self, inputs: Mapping[str, Tensor], features: Sequence[int]) -> Tensor:
        """``pixels`` (N, C) and what follows from their places -> (N, W) or (N, (1 + taps) W), image by image."""
        x_NW = self.patch_embed(inputs["pixels"])
        assert len(x_NW) == sum(features), f"{len(x_NW)} patches for the {sum(features)} that were measured"
        if self.pos_embed is not None:
            entries_NPW = self.pos_embed(inputs["entries"])
            x_NW = x_NW + (entries_NPW * inputs["weights"][..., None]).sum(1).to(x_NW.dtype)
        turn = turns(inputs["cells"], self.shape.width // self.shape.heads)
        whole = images(features, x_NW.device)
        near = windows(inputs, features) if self.in_windows else whole
        tapped = []
        for index, block in enumerate(self.blocks):
            x_NW = block(x_NW, turn, whole if index in self.shape.full else near)
            if index in self.shape.taps:
                tapped.append(x_NW)
        return torch.cat([x_NW, *tapped], 1)[self._raster(inputs["raster"], features)]

    @staticmethod
    def _raster(raster_N: Tensor, features: Sequence[int]) -> Tensor:
        """(N,) patches row by row, those of each image behind those before it."""
        counts = np.array(features)
        starts_N = (counts.cumsum() - counts).repeat(counts)
        return raster_N + torch.from_numpy(starts_N).to(raster_N.device)
