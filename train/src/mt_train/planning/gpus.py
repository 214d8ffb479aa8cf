"""GPUs that a run may be planned for without one at hand: what their makers say of them. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from mt_core.errors import UsageError

SPECIFICATIONS = "https://github.com/stas00/ml-engineering/blob/master/compute/accelerator/README.md"
"""Dense operations of each precision, size and bandwidth of the memory, by accelerator."""
LINKS = "https://github.com/stas00/ml-engineering/blob/master/network/README.md"
"""Bandwidth between the GPUs of a node, one way."""
DRIVER = "memory.total of nvidia-smi"
BLACKWELL = "https://glennklockwood.com/garden/processors/B200"
"""Operations of a B200 at 1,000 W."""
ADA = "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU: dense operations a second by precision (``None``: has none), memory (bytes that the driver reports), and bandwidths
    (bytes a second) of its memory and, one way, to the others of its node. ``sources`` says where each comes from."""

    name: str
    architecture: str
    fp32: float
    tf32: float
    bf16: float
    fp8: float | None
    memory: int
    memory_bandwidth: float
    link: float
    sources: tuple[str, ...]

    def peak(self, dtype: str, *, tf32: bool = False) -> float:
        """Return dense operations a second of matrix products in the precision of a run."""
        if dtype == "fp32":
            return self.tf32 if tf32 else self.fp32
        return self.bf16


def _gpu(
    name: str,
    architecture: str,
    teraflops: tuple[float, float, float, float | None],
    memory: int,
    bandwidth: float,
    link: float,
    *sources: str,
) -> Gpu:
    """Return a GPU from tera-operations in fp32, tf32, bf16 and fp8, and memory (MiB), its bandwidth (TB/s) and the link's (GB/s)."""
    fp32, tf32, bf16, fp8 = teraflops
    return Gpu(
        name=name,
        architecture=architecture,
        fp32=fp32 * 1e12,
        tf32=tf32 * 1e12,
        bf16=bf16 * 1e12,
        fp8=None if fp8 is None else fp8 * 1e12,
        memory=memory * 2**20,
        memory_bandwidth=bandwidth * 1e12,
        link=link * 1e9,
        sources=sources or (SPECIFICATIONS, LINKS, DRIVER),
    )


GPUS: tuple[Gpu, ...] = (
    _gpu("a100-40g", "ampere", (19.5, 156, 312, None), 40_960, 1.6, 300),
    _gpu("a100-80g", "ampere", (19.5, 156, 312, None), 81_920, 2.0, 300),
    _gpu("h100-80g", "hopper", (67, 494.5, 989, 1979), 81_559, 3.35, 450),
    _gpu("h100-pcie-80g", "hopper", (51, 378, 756, 1513), 81_559, 2.0, 63),
    _gpu("h200-141g", "hopper", (67, 494.5, 989, 1979), 143_771, 4.8, 450),
    _gpu("b200-180g", "blackwell", (80, 1100, 2250, 4500), 183_359, 8.0, 900, BLACKWELL, SPECIFICATIONS, LINKS, DRIVER),
    _gpu("l40s-48g", "ada", (91.6, 183, 362, 733), 46_068, 0.86, 31),
    _gpu("rtx4090-24g", "ada", (82.6, 82.6, 165.2, 330.3), 24_564, 1.008, 31, ADA, LINKS, DRIVER),
    _gpu("mi300x-192g", "cdna3", (163.4, 653.7, 1300, 2600), 183_105, 5.3, 448, SPECIFICATIONS, LINKS),
)
"""SXM parts, unless the name says PCIe; an L40S and a PCIe card have the bus between neighbours. ``fp8`` is there to be looked up: no
time of a run that multiplies in it is counted by it."""


def find_gpu(name: str) -> Gpu:
    """Return a GPU by its name. Raises ``UsageError`` with the nearest names for one that is not in the table."""
    known = {gpu.name: gpu for gpu in GPUS}
    if name in known:
        return known[name]
    begins = [each for each in known if name and each.startswith(name.lower())]
    near = begins or get_close_matches(name.lower(), known, n=3, cutoff=0.4)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    raise UsageError(f"--gpu: no GPU named {name!r} in the table.{hint} There are {', '.join(known)}")
