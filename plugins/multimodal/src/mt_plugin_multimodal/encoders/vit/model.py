"""A vision transformer (https://arxiv.org/abs/2010.11929) in the forms of CLIP, SigLIP and DINOv2.

Names of parameters are those of CLIP's published checkpoints, its "pre_layrnorm" included.

Shapes: I images, S side in pixels, P patches of an image, T tokens (patches and class token), W width, H heads, F width of the MLP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from mt_core.nn import Encoder

from . import Form, Shape, ViTConfig


def quick_gelu(x: Tensor) -> Tensor:
    """x · sigmoid(1.702 x) (https://arxiv.org/abs/1606.08415, section 2)."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "quick_gelu": quick_gelu,
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
}


class Embeddings(nn.Module):
    """Patches as tokens with positions, the class token first."""

    def __init__(self, shape: Shape, form: Form, trained_rows: int) -> None:
        super().__init__()
        self.rows, self.trained_rows = shape.image // shape.patch, trained_rows
        self.patch_embedding = nn.Conv2d(3, shape.width, shape.patch, stride=shape.patch, bias=form.patch_bias)
        self.class_embedding = nn.Parameter(torch.zeros(shape.width)) if form.class_token else None
        self.position_embedding = nn.Embedding(trained_rows**2 + form.class_token, shape.width)

    def forward(self, pixels_I3SS: Tensor) -> Tensor:
        """(I, 3, S, S) -> (I, T, W)."""
        patches = self.patch_embedding(pixels_I3SS.to(self.patch_embedding.weight.dtype))
        hidden_ITW = patches.flatten(2).transpose(1, 2)
        if self.class_embedding is not None:
            class_I1W = self.class_embedding.expand(len(hidden_ITW), 1, -1)
            hidden_ITW = torch.cat([class_I1W, hidden_ITW], dim=1)
        out_ITW: Tensor = hidden_ITW + self._positions(hidden_ITW.device)
        return out_ITW

    def _positions(self, device: torch.device) -> Tensor:
        """(T, W): those of patches interpolated where the image has another side than they were trained for.

        They are looked up and not taken as a parameter, which ZeRO 3 gathers for a call of its module alone.
        """
        positions_TW: Tensor = self.position_embedding(
            torch.arange(self.position_embedding.num_embeddings, device=device)
        )
        if self.rows == self.trained_rows:
            return positions_TW
        before = len(positions_TW) - self.trained_rows**2
        square = positions_TW[before:].T.reshape(1, -1, self.trained_rows, self.trained_rows).float()
        square = functional.interpolate(square, size=(self.rows, self.rows), mode="bicubic", align_corners=False)
        return torch.cat([positions_TW[:before], square[0].flatten(1).T.to(positions_TW.dtype)])


class Attention(nn.Module):
    """Every token sees every other one of its image."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(shape.width, shape.width) for _ in range(4))

    def forward(self, x_ITW: Tensor) -> Tensor:
        """(I, T, W) -> (I, T, W)."""
        q, k, v = (
            project(x_ITW).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v)
        return self.out_proj(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """Two projections with the activation between."""

    def __init__(self, shape: Shape, activation: str) -> None:
        super().__init__()
        self.fc1 = nn.Linear(shape.width, shape.mlp)
        self.fc2 = nn.Linear(shape.mlp, shape.width)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x_ITW: Tensor) -> Tensor:
        """(I, T, W) -> (I, T, W)."""
        return self.fc2(self.activation(self.fc1(x_ITW)))  # type: ignore[no-any-return]


class GatedMLP(nn.Module):
    """SwiGLU (https://arxiv.org/abs/2002.05202), gate and up projection in one."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.weights_in = nn.Linear(shape.width, 2 * shape.mlp)
        self.weights_out = nn.Linear(shape.mlp, shape.width)

    def forward(self, x_ITW: Tensor) -> Tensor:
        """(I, T, W) -> (I, T, W)."""
        gate_ITF, up_ITF = self.weights_in(x_ITW).chunk(2, dim=2)
        return self.weights_out(functional.silu(gate_ITF) * up_ITF)  # type: ignore[no-any-return]


class LayerScale(nn.Module):
    """A factor for each channel (https://arxiv.org/abs/2103.17239)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lambda1 = nn.Parameter(torch.ones(width))

    def forward(self, x_ITW: Tensor) -> Tensor:
        """(I, T, W) -> (I, T, W)."""
        return x_ITW * self.lambda1


class Block(nn.Module):
    """Attention and MLP, each behind a norm and added to its input."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        shape, scaled = config.shape, config.form.layer_scale
        self.layer_norm1 = nn.LayerNorm(shape.width, eps=config.eps)
        self.self_attn = Attention(shape)
        self.layer_scale1 = LayerScale(shape.width) if scaled else nn.Identity()
        self.layer_norm2 = nn.LayerNorm(shape.width, eps=config.eps)
        self.mlp = GatedMLP(shape) if shape.gated else MLP(shape, config.activation)
        self.layer_scale2 = LayerScale(shape.width) if scaled else nn.Identity()

    def forward(self, x_ITW: Tensor) -> Tensor:
        """(I, T, W) -> (I, T, W)."""
        x_ITW = x_ITW + self.layer_scale1(self.self_attn(self.layer_norm1(x_ITW)))
        return x_ITW + self.layer_scale2(self.mlp(self.layer_norm2(x_ITW)))  # type: ignore[no-any-return]


class Blocks(nn.Module):
    """The blocks up to the layer whose output is taken; those above it are not built."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(config) for _ in range(config.depth))

    def forward(self, x_ITW: Tensor) -> Tensor:
        """(I, T, W) -> (I, T, W)."""
        for layer in self.layers:
            x_ITW = layer(x_ITW)
        return x_ITW


class ViT(Encoder):
    """Pixels of all images at once to a feature of each patch, row by row."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        shape, form = config.shape, config.form
        norm = partial(nn.LayerNorm, shape.width, eps=config.eps)
        self.embeddings = Embeddings(shape, form, config.trained_rows)
        self.pre_layrnorm = norm() if form.first_norm else nn.Identity()
        self.encoder = Blocks(config)
        self.post_layernorm = norm() if config.has_last_norm else nn.Identity()
        self.dropped = int(form.class_token) - config.features_before

    def forward(self, inputs: Mapping[str, Tensor], features: Sequence[int]) -> Tensor:
        """``pixels`` (I, 3, S, S) -> (N, W), image by image."""
        hidden_ITW = self.encoder(self.pre_layrnorm(self.embeddings(inputs["pixels"])))
        out_NW: Tensor = self.post_layernorm(hidden_ITW)[:, self.dropped :].flatten(0, 1)
        assert len(out_NW) == sum(features), f"{len(out_NW)} features for the {sum(features)} that were measured"
        return out_NW

    def init_tensor(self, name: str, tensor: Tensor, generator: Generator) -> None:
        """Factors of channels begin at 1 and the class token as a draw; the rest is as the base class says."""
        if name.endswith(".lambda1"):
            tensor.fill_(1.0)
        elif name == "embeddings.class_embedding":
            tensor.normal_(0.0, 0.02, generator=generator)
        else:
            super().init_tensor(name, tensor, generator)
