"""The kernels that make the fp32 matrix products of a run, and what those of bf16 would gain.

On CPUs without matrix units for bf16, torch's setting "medium" has them made by oneDNN, in fp32 and 1.6 to 1.9 times as fast as
by MKL on AMD's (docs/log.md). On Intel's MKL is up to a third faster than oneDNN, so that nothing is set there. Where there are such units
(AMX) it would compute in bf16, so that it is never set there, and what it does is measured before it is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch

from mt_core.nn.short import processor_has
from mt_train.config.sections import TrainConfig

MOST_ERROR = 2e-6
"""Relative to fp64, of a product over 512 terms: MKL's is 3e-7, oneDNN's 6e-7, bf16's 3e-3."""


def matmul_precision(device: str, *, tf32: bool) -> str:
    """The setting of ``torch.set_float32_matmul_precision`` for runs on this type of device."""
    if device == "cpu" and not is_intel() and keeps_fp32("medium"):
        return "medium"
    return "high" if tf32 else "highest"


def is_intel(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether Linux says that the processors are Intel's, whose best instructions MKL takes."""
    return cpuinfo.exists() and "GenuineIntel" in cpuinfo.read_text()


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


LEAST_GAIN = 1.15
"""Ratio of times below which nothing is said."""


def describe_bf16(config: TrainConfig, device: str) -> str:
    """Describe what bf16 would gain where a run is in fp32 because nobody said otherwise, on a CPU that has products of bf16."""
    if config.dtype != "auto" or device != "cpu" or not processor_has("amx_bf16", "avx512_bf16"):
        return ""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(matmul_precision(device, tf32=config.tf32))
    try:
        gain = product_seconds(torch.float32) / product_seconds(torch.bfloat16)
    finally:
        torch.set_float32_matmul_precision(before)
    if not gain >= LEAST_GAIN:
        return ""
    return (
        f"notice: this run is in fp32. Matrix products would be about {gain:.2g} times as fast in bf16 on this processor"
        " (--train.dtype bf16); what else is in a step gains less, and losses change by about 1e-3"
    )


def product_seconds(dtype: torch.dtype, size: int = 512) -> float:
    """Return the least time of a square product (seconds); both precisions take about 10 ms in all."""
    one, other = (torch.ones(size, size, dtype=dtype) for _ in range(2))
    times = []
    for _ in range(3):
        start = time.perf_counter()
        torch.mm(one, other)
        times.append(time.perf_counter() - start)
    return min(times)


def _error() -> float:
    """Return the error of one product, 256 x 512 x 512, relative to fp64."""
    generator = torch.Generator().manual_seed(0)
    one, other = (torch.randn(shape, generator=generator) for shape in ((256, 512), (512, 512)))
    exact = one.double() @ other.double()
    return float((torch.mm(one, other).double() - exact).norm() / exact.norm())
