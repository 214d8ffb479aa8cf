"""Formulas under Liger's names and signatures, for machines without its kernels."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor, nn


class Norm:
    """Liger's signature, and the formula of its modes."""

    @staticmethod
    def apply(x: Tensor, weight: Tensor, eps: float, offset: float, mode: str, in_place: bool) -> Tensor:
        assert not in_place
        normed = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
        return normed.to(x.dtype) * weight if mode == "llama" else (normed * (offset + weight.float())).to(x.dtype)


class Activation:
    """``silu(gate) * up``."""

    @staticmethod
    def apply(gate: Tensor, up: Tensor) -> Tensor:
        return nn.functional.silu(gate.float()).to(up.dtype) * up


class Turn:
    """As transformers turns: (B, N, T, H), with tables that it repeats for both halves."""

    @staticmethod
    def apply(
        q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: None, dim: int, width: int
    ) -> tuple[Tensor, ...]:
        cos, sin = (torch.cat([x, x], -1).unsqueeze(dim) for x in (cos, sin))

        def turn(x: Tensor) -> Tensor:
            part, rest = x[..., :width].float(), x[..., width:]
            half = torch.cat([-part[..., width // 2 :], part[..., : width // 2]], -1)
            return torch.cat([(part * cos + half * sin).to(x.dtype), rest], -1)

        return turn(q), turn(k)


def modules() -> dict[str, ModuleType]:
    """Return modules by the names under which Liger is imported."""
    found = {name: ModuleType(name) for name in ("liger_kernel", "liger_kernel.ops")}
    kernels = {"rms_norm": ("LigerRMSNormFunction", Norm), "swiglu": ("LigerSiLUMulFunction", Activation)}
    for name, (function, value) in {**kernels, "rope": ("LigerRopeFunction", Turn)}.items():
        module = ModuleType(f"liger_kernel.ops.{name}")
        setattr(module, function, value)
        found[module.__name__] = module
    return found
