"""Norms, gated activations and rotary turns as one kernel each, those of Liger (https://arxiv.org/abs/2410.10989), without a compiler.

Parameters and their names stay, so that checkpoints, ZeRO, pipelines and adapters see nothing of it. Liger's backward of an activation
writes over the projections that it kept, and its turn over queries and keys: nothing else here reads them by then.

Shapes: B rows, T tokens, N query heads, K key/value heads, H head width, D width, F frequencies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor, nn

from mt_core.errors import UsageError
from mt_core.nn import BlockContext, RMSNorm, Rotary, geglu, swiglu
from mt_core.nn.rotary import RotaryTables

OLDEST = (0, 8, 5)
"""The first release whose turn takes tables of half a head."""


def use_liger(model: nn.Module, device: torch.device) -> Counter[str]:
    """Put Liger's kernels in the place of the operations that have one, in all modules; return how many of each kind.

    Raises ``UsageError`` away from a GPU, and where Liger is missing or too old.
    """
    if device.type != "cuda":
        raise UsageError(f"train.kernels=liger has kernels for GPUs, and this run is on {device.type}; leave it out")
    require_liger()
    return replace_operations(model)


def require_liger() -> None:
    """Raise ``UsageError`` where no usable Liger is installed."""
    needed = ".".join(map(str, OLDEST))
    try:
        found = version("liger-kernel")
    except PackageNotFoundError as error:
        raise UsageError(
            f"train.kernels=liger needs liger-kernel {needed} or newer, which is not installed: pip install 'mt-train[liger]'"
        ) from error
    numbers = tuple(int(part) for part in found.split(".")[:3] if part.isdigit())
    if numbers < OLDEST:
        raise UsageError(
            f"train.kernels=liger needs liger-kernel {needed} or newer, and {found} is installed: pip install 'mt-train[liger]'"
        )


def replace_operations(model: nn.Module) -> Counter[str]:
    """``use_liger`` on any device: Liger's kernels run on a CPU in Triton's interpreter."""
    gates: dict[Callable[..., Tensor], Callable[..., Tensor]] = {swiglu: liger_swiglu, geglu: liger_geglu}
    rotaries: dict[int, LigerRotary] = {}
    found: Counter[str] = Counter()
    for name, module in list(model.named_modules()):
        if type(module) is RMSNorm:
            model.set_submodule(name, LigerRMSNorm(module))
            found["norms"] += 1
        if (gate := getattr(module, "gate", None)) in gates:
            module.gate = gates[gate]
            found["activations"] += 1
        rotary = getattr(module, "rotary", None)
        if type(rotary) is Rotary:
            module.rotary = rotaries.setdefault(id(rotary), LigerRotary(rotary))
            found["turns"] += 1
    return found


def describe_liger(found: Counter[str]) -> str:
    """Describe for the console what runs as Liger's kernels."""
    return "kernels    Liger's for " + ", ".join(f"{count} {name}" for name, count in found.items())


class LigerRMSNorm(RMSNorm):
    """Stands for an ``RMSNorm``, whose weight it has."""

    def __init__(self, norm: RMSNorm) -> None:
        nn.Module.__init__(self)
        self.weight, self.eps = norm.weight, norm.eps
        self.centred, self.rounds_last = norm.centred, norm.rounds_last
        self.train(norm.training)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D), in the dtype of the input. Its modes: Llama's rounds before the weight, Gemma's behind it."""
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction

        mode = "gemma" if self.centred or self.rounds_last else "llama"
        in_place = False  # the gradient may be that of the residual stream too
        out: Tensor = LigerRMSNormFunction.apply(
            x_BTD, self.weight, self.eps, 1.0 if self.centred else 0.0, mode, in_place
        )
        return out


def liger_swiglu(gate_BTF: Tensor, up_BTF: Tensor) -> Tensor:
    """See ``mt_core.nn.swiglu``."""
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    return LigerSiLUMulFunction.apply(gate_BTF, up_BTF)  # type: ignore[no-any-return]


def liger_geglu(gate_BTF: Tensor, up_BTF: Tensor) -> Tensor:
    """See ``mt_core.nn.geglu``."""
    from liger_kernel.ops.geglu import LigerGELUMulFunction

    return LigerGELUMulFunction.apply(gate_BTF, up_BTF)  # type: ignore[no-any-return]


class LigerTables(RotaryTables):
    """Tables by which Liger turns queries and keys at once. Neighbours, which it does not turn, are turned as ever."""

    __slots__ = ()

    def turn(self, q_BTNH: Tensor, k_BTKH: Tensor, *, interleaved: bool) -> tuple[Tensor, Tensor]:
        """See ``RotaryTables``."""
        if interleaved:
            return super().turn(q_BTNH, k_BTKH, interleaved=True)
        from liger_kernel.ops.rope import LigerRopeFunction

        cos_BTF, sin_BTF = self.cos_BT1F.squeeze(2), self.sin_BT1F.squeeze(2)
        heads: list[Any] = [each.transpose(1, 2) for each in (q_BTNH, k_BTKH)]
        q_BNTH, k_BKTH = LigerRopeFunction.apply(*heads, cos_BTF, sin_BTF, None, 1, 2 * cos_BTF.shape[-1])
        return q_BNTH.transpose(1, 2), k_BKTH.transpose(1, 2)


class LigerRotary(Rotary):
    """Stands for a ``Rotary``; in a forward all blocks with the same angles share its tables."""

    def __init__(self, rotary: Rotary) -> None:
        super().__init__(rotary.rope.width, theta=rotary.rope.theta, scaling=rotary.rope.scaling)
        self._key = f"liger {self._key}"

    def _compute(self, context: BlockContext) -> RotaryTables:
        return LigerTables(*super()._compute(context))
