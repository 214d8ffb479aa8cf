"""Norms and gated MLPs of transformers by mt_core's operations, which keep less for the backward, where these give the same bits.

No name of a type occurs here: a module is taken that has the parts of a norm or of a gated MLP, and that on random values, in fp32 and
in bf16, gives bit for bit what the operation gives. Its parameters and children stay its own, so that adapters find them.

Shapes: B rows, T tokens, D model width, F feed-forward width.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mt_core.nn import RMSNorm, geglu, project_gated, swiglu

_GATED = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_EPS = ("variance_epsilon", "eps")
_WIDTHS = 8, 12
"""D and F of what is tried."""


def use_fused(model: nn.Module) -> None:
    """Run norms and gated MLPs by mt_core's operations where these give the same bits."""
    found: dict[Any, type[nn.Module] | None] = {}
    for module in model.modules():
        key = _key(module)
        if key not in found:
            found[key] = _find_operation(module)
        if (operation := found[key]) is not None:
            _use_operation(module, operation)


def _key(module: nn.Module) -> Any:
    """Return what modules have in common that do the same: their class, their plain attributes, and classes of their children."""
    plain = {name: each for name, each in module.__dict__.items() if isinstance(each, str | int | float)}
    return type(module), tuple(plain.items()), tuple((name, type(each)) for name, each in module._modules.items())


def _use_operation(module: nn.Module, operation: type[nn.Module]) -> None:
    module.__class__ = type(type(module).__name__, (operation, type(module)), {})
    if issubclass(operation, RMSNorm):
        module.__dict__["eps"] = next(module.__dict__[name] for name in _EPS if name in module.__dict__)


class _Norm(RMSNorm):
    """``mt_core.nn.RMSNorm`` with the parameters of another module."""

    centred = rounds_last = False

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return RMSNorm.forward(self, x_BTD)


class _NormInFp32(_Norm):
    rounds_last = True


class _CentredNorm(_Norm):
    centred = True


class _GatedMLP(nn.Module):
    gate: Callable[[Tensor, Tensor], Tensor]

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        own: Any = self
        return project_gated(own.down_proj, own.gate_proj(x_BTD), own.up_proj(x_BTD), own.gate)


class _SwigluMLP(_GatedMLP):
    gate = staticmethod(swiglu)


class _GegluMLP(_GatedMLP):
    gate = staticmethod(geglu)


def _find_operation(module: nn.Module) -> type[nn.Module] | None:
    """Return the operation that does what the module does, tried on values of its own; ``None`` where there is none."""
    width, hidden = _WIDTHS
    weight = module._parameters.get("weight")
    twin = copy.copy(module)
    if weight is not None and weight.dim() == 1 and len(module._parameters) == 1 and {*_EPS} & {*module.__dict__}:
        tried: tuple[type[nn.Module], ...] = (_Norm, _NormInFp32, _CentredNorm)
        twin.__dict__["_parameters"] = {}
        twin.__dict__["weight"] = _values(width)
    elif set(module._modules) == _GATED and not module._parameters:
        tried = (_SwigluMLP, _GegluMLP)
        shapes = {"gate_proj": (width, hidden), "up_proj": (width, hidden), "down_proj": (hidden, width)}
        twin.__dict__["_modules"] = {
            **module._modules,
            **{name: _Product(_values(*shape)) for name, shape in shapes.items()},
        }
    else:
        return None
    return next((operation for operation in tried if _gives_same_bits(twin, operation)), None)


class _Product(nn.Module):
    """Stands for a projection, without a parameter, which would be divided among ranks where a model is built."""

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.__dict__["matrix"] = matrix

    def forward(self, x: Tensor) -> Tensor:
        """(…, E) -> (…, F)."""
        out: Tensor = x @ self.__dict__["matrix"].to(x.dtype)
        return out


@torch.no_grad()
def _gives_same_bits(twin: nn.Module, operation: type[nn.Module]) -> bool:
    """Return whether an operation gives the bits that a module gives. One that takes something else than hidden states does not."""
    other = copy.copy(twin)
    _use_operation(other, operation)
    for dtype in (torch.float32, torch.bfloat16):
        x_BTD = _values(2, 3, _WIDTHS[0]).to(dtype)
        for each in (twin, other):
            if "weight" in each.__dict__:
                each.__dict__["weight"] = each.__dict__["weight"].to(dtype)
        try:
            alike = torch.equal(twin(x_BTD), other(x_BTD))
        except (TypeError, ValueError, RuntimeError, LookupError, AttributeError):
            return False
        if not alike:
            return False
    return True


def _values(*shape: int) -> Tensor:
    """Numbers around 0 and away from it, not drawn: nothing else is drawn otherwise for them."""
    count = torch.arange(math.prod(shape), device="cpu", dtype=torch.float32)
    return (2 * torch.sin(1.7 * count + 1) + 0.3 * torch.cos(0.9 * count)).reshape(shape)
