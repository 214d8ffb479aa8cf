"""The kernels that make the fp32 matrix products of a run.

On CPUs without matrix units for bf16, torch's setting "medium" has them made by oneDNN, in fp32 and 1.6 to 1.9 times as fast as
by MKL on AMD's (docs/log.md). Where there are such units (AMX) it would compute in bf16, so that it is never set there, and what
it does is measured before it is kept.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

MOST_ERROR = 2e-6
"""Relative to fp64, of a product over 512 terms: MKL's is 3e-7, oneDNN's 6e-7, bf16's 3e-3."""


def matmul_precision(device: str, *, tf32: bool) -> str:
    """The setting of ``torch.set_float32_matmul_precision`` for runs on this type of device."""
    if device == "cpu" and keeps_fp32("medium"):
        return "medium"
    return "high" if tf32 else "highest"


def keeps_fp32(setting: str, has_amx: Callable[[], bool] | None = None) -> bool:
    """Return whether a CPU's products are those of fp32 under this setting, which is as it was afterwards."""
    # A torch that cannot say is taken to have them.
    ask = getattr(torch.cpu, "_is_amx_tile_supported", lambda: True) if has_amx is None else has_amx
    if ask():
        return False
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(setting)
    try:
        return _error() <= MOST_ERROR
    finally:
        torch.set_float32_matmul_precision(before)


def present_setting() -> str:
    """The setting of this process, which a checkpoint names."""
    return torch.get_float32_matmul_precision()


def describe_change(saved: str | None) -> str:
    """Describe that a run goes on with another setting than it was saved with; nothing where it is the same.

    Checkpoints that do not say were saved when there was one alone.
    """
    there, here = saved or "highest", present_setting()
    if there == here:
        return ""
    return (
        f"notice: the run was saved with fp32 matrix products of torch's setting {there!r}, and has {here!r} on this machine: other"
        " kernels, so that it does not repeat bit for bit"
    )


def _error() -> float:
    """Return the error of one product, 256 x 512 x 512, relative to fp64."""
    generator = torch.Generator().manual_seed(0)
    one, other = (torch.randn(shape, generator=generator) for shape in ((256, 512), (512, 512)))
    exact = one.double() @ other.double()
    return float((torch.mm(one, other).double() - exact).norm() / exact.norm())
