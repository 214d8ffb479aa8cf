"""A probe that gives what a test has written down, and keeps what it was asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from mt_core import Adapter
from mt_core.nn import Batch, LossFactor


class GivenProbe:
    """Implements ``mt_core.Probe``."""

    def __init__(
        self,
        *,
        gradients: Mapping[str, Tensor] | None = None,
        moments: Mapping[str, Tensor] | None = None,
        squares: Mapping[str, Tensor] | None = None,
    ):
        self._gradients, self._moments, self._squares = gradients or {}, moments or {}, squares or {}
        self.asked: list[tuple[list[str], int]] = []

    def gradients(self, names: Sequence[str], *, steps: int) -> dict[str, Tensor]:
        self.asked.append((list(names), steps))
        return {name: self._gradients[name].clone() for name in names}

    def input_moments(self, modules: Sequence[str], *, steps: int) -> dict[str, Tensor]:
        self.asked.append((list(modules), steps))
        return {name: self._moments[name].clone() for name in modules}

    def output_squares(self, modules: Sequence[str], *, steps: int) -> dict[str, Tensor]:
        self.asked.append((list(modules), steps))
        return {name: self._squares[name].clone() for name in modules}

    def batches(self, *, steps: int) -> Iterator[Sequence[Batch]]:
        raise NotImplementedError


class Chain(nn.Module):
    """Linear layers one after the other, with an odd function between them: inputs x and -x give activations z and -z."""

    default_targets = ("blocks.*",)
    routers = ()

    def __init__(self, *widths: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([nn.Linear(inputs, outputs, bias=False) for inputs, outputs in pairwise(widths)])
        self.requires_grad_(False)
        self.head = nn.Identity()
        self.loss_factor = LossFactor()

    def kept_names(self) -> list[str]:
        return []

    def refuse_kept(self, key: str, pattern: str, names: object) -> None:
        """Nothing is kept."""

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = torch.tanh(block(x))
        return x


def with_gradients(adapter: Adapter, *widths: int, decay: float = 0.8) -> tuple[Chain, dict[str, Tensor], GivenProbe]:
    """A chain that the adapter was prepared for and put into, with gradients whose singular values fall by ``decay``."""
    model = Chain(*widths)
    gradients = {f"blocks.{i}.weight": falling_matrix(block, decay, i) for i, block in enumerate(model.blocks)}
    probe = GivenProbe(gradients=gradients)
    adapter.prepare(model, probe)
    put(adapter, model)
    return model, gradients, probe


def put(adapter: Adapter, model: nn.Module) -> None:
    """Inject and begin."""
    adapter.inject(model)
    for i, layer in enumerate(model.blocks):
        if hasattr(layer, "initialise"):
            layer.initialise(torch.Generator().manual_seed(i))
            for name, parameter in layer.own_parameters():
                parameter.requires_grad_(layer.trained is None or name in layer.trained)


def falling_matrix(layer: nn.Linear, decay: float, seed: int) -> Tensor:
    """A matrix of the layer's shape with singular values 0.01, 0.01 · decay, …"""
    generator = torch.Generator().manual_seed(100 + seed)
    u, _, v = torch.linalg.svd(torch.randn(layer.weight.shape, generator=generator), full_matrices=False)
    return (u * 0.01 * decay ** torch.arange(u.shape[1])) @ v
