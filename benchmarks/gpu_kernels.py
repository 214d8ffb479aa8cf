"""Two more checks of ``gpu.py``: Liger's kernels beside ours, and compiled blocks beside those that are not.

    TRITON_INTERPRET=1 python benchmarks/gpu_kernels.py

runs Liger's own kernels on a CPU, in Triton's interpreter, and prints how far they are from ours.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mt_core.nn import RMSNorm, geglu, swiglu
from mt_core.nn.rotary import RotaryTables
from mt_train.engine.liger import LigerRMSNorm, LigerTables, liger_geglu, liger_swiglu

MOST = {torch.float32: 1e-5, torch.bfloat16: 3e-2}
"""Largest distance from ours of a number, relative to the largest: bf16 rounds to 2 ** -8, and gradients add some of them up."""


def liger(folder: Path) -> dict[str, Any]:
    """Compare Liger's kernels with ours in fp32 and bf16; returns the largest distance of each. They need a GPU, or the interpreter."""
    if find_spec("liger_kernel") is None or not torch.cuda.is_available():
        return {"liger": "not run: no GPU, or no liger-kernel"}
    found = {f"{name}, {dtype}": max(far) for dtype in MOST for name, far in distances("cuda", dtype).items()}
    off = {
        name: far for name, far in found.items() for dtype, most in MOST.items() if str(dtype) in name and far > most
    }
    assert not off, f"kernels of Liger differ from ours: {off}"
    return found


def compiled_blocks(folder: Path) -> dict[str, Any]:
    """Compare blocks whose attention is in their graph with plain ones, for several packings, and count graphs: none is compiled anew.

    A GPU compiles by inductor in bf16; a CPU traces alone, in fp32.
    """
    from gpu_checks import device
    from torch._dynamo.utils import counters

    from mt_core.nn import SdpaAttention
    from mt_train.engine.compilation import compile_blocks
    from mt_train.engine.graph_attention import GraphAttention

    dtype = torch.float32 if device().type == "cpu" else torch.bfloat16
    plain, model = (_small_model(dtype) for _ in range(2))
    model.attention = GraphAttention(SdpaAttention(), packs=True)
    torch._dynamo.reset()
    counters.clear()
    backend = "aot_eager" if device().type == "cpu" else "inductor"
    compile_blocks(model.model.layers, backend=backend, fullgraph=True)
    distance = 0.0
    with torch._dynamo.config.patch(error_on_recompile=True):
        for lengths in (((256,), (256,)), ((100, 156), (256,)), ((30, 1, 225), (9,) * 28 + (4,))):
            ours, theirs = (_gradients(each, lengths) for each in (model, plain))
            distance = max(distance, *(float((a - b).norm() / b.norm()) for a, b in zip(ours, theirs, strict=True)))
    assert distance <= MOST[dtype], f"compiled blocks differ from plain ones by {distance}"
    return {"graphs": counters["stats"]["unique_graphs"], "breaks": len(counters["graph_break"]), "distance": distance}


def _small_model(dtype: torch.dtype) -> Any:
    from gpu_checks import device

    from mt_plugin_llama.config import LlamaConfig
    from mt_plugin_llama.model import Llama

    torch.manual_seed(0)
    sizes = {
        "vocab_size": 97,
        "dim": 64,
        "n_layers": 2,
        "n_heads": 4,
        "n_kv_heads": 2,
        "ffn_dim": 96,
        "max_seq_len": 256,
    }
    model = Llama(LlamaConfig(**sizes))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 1.0 if parameter.dim() == 1 else 0.0, 0.1)
    return model.to(device(), dtype)


def _gradients(model: Any, lengths: tuple[tuple[int, ...], ...]) -> list[Tensor]:
    """Hidden states, and the gradient of each weight, of rows of such documents."""
    from gpu_checks import device

    from mt_core.nn import Batch

    ids = torch.tensor([[number for number, size in enumerate(row) for _ in range(size)] for row in lengths])
    places = torch.tensor([[place for size in row for place in range(size)] for row in lengths])
    tokens = torch.randint(0, 97, ids.shape, generator=torch.Generator().manual_seed(1))
    batch = Batch(input_ids=tokens, labels=tokens, positions=places, document_ids=ids).with_index().to(device())
    model.zero_grad()
    hidden = model(batch)
    weight = torch.arange(hidden.numel(), device=device()).cos().view(hidden.shape)
    (hidden.float() * weight).sum().backward()
    grads = [each.grad for each in model.parameters() if each.grad is not None]
    return [each.detach().double().cpu() for each in (hidden, *grads)]


def far(one: Callable[..., Any], other: Callable[..., Any], *tensors: Tensor) -> list[float]:
    """Largest distances of outputs and gradients, relative to the largest number of each."""
    found = []
    for function in (one, other):
        leaves = [each.detach().clone().requires_grad_() for each in tensors]
        out = function(*[leaf * 1 for leaf in leaves])  # Liger writes over what it is given
        out = torch.cat([each.flatten() for each in out]) if isinstance(out, tuple) else out.flatten()
        kept = out.detach().clone()
        weight = torch.arange(len(out), device=out.device).cos().to(out.dtype)
        found.append([kept, *torch.autograd.grad((out * weight).sum(), leaves)])
    return [float((a - b).abs().max() / b.abs().max()) for a, b in zip(*found, strict=True)]


def norm_distances(x: Tensor, weight: Tensor, **form: bool) -> list[float]:
    ours = RMSNorm(len(weight), **form).to(x.device, x.dtype)
    theirs = LigerRMSNorm(ours)

    def run(norm: RMSNorm) -> Callable[..., Any]:
        return lambda x, weight: torch.func.functional_call(norm, {"weight": weight}, (x,))

    return far(run(theirs), run(ours), x, weight)


def distances(device: str, dtype: torch.dtype = torch.float32) -> dict[str, list[float]]:
    """Return how far each kernel is from ours: the output, then gradients."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    x, weight, gate, up = draw(2, 7, 48), draw(48), draw(2, 7, 40), draw(2, 7, 40)
    q, k = draw(2, 7, 4, 16), draw(2, 7, 2, 16)
    found = {
        "norm": norm_distances(x, weight),
        "centred norm": norm_distances(x, weight, centred=True),
        "norm that rounds last": norm_distances(x, weight, rounds_last=True),
        "swiglu": far(liger_swiglu, swiglu, gate, up),
        "geglu": far(liger_geglu, geglu, gate, up),
    }
    for name, frequencies in (("turn", 8), ("part that turns", 6)):
        angles = draw(2, 7, 1, frequencies).float()
        tables = angles.cos(), angles.sin()
        theirs, ours = LigerTables(*tables), RotaryTables(*tables)
        turned, turned_here = (partial(each.turn, interleaved=False) for each in (theirs, ours))
        found[name] = far(turned, turned_here, q, k)
    return found


def complete_interpreter() -> None:
    """Give Triton's interpreter what it lacks of its compiler: scalars are tensors to a kernel (``eps.to(tl.float32)``), and a device's
    library has ``rsqrt`` and ``tanh``."""
    import numpy as np
    import triton.language as tl
    from liger_kernel.ops import geglu as gelu
    from liger_kernel.ops import rms_norm
    from triton.runtime import interpreter

    convert = interpreter._implicit_cvt

    def convert_more(value: Any) -> Any:
        if isinstance(value, float):
            return tl.tensor(interpreter.TensorHandle(np.array([value], dtype=np.float32), tl.float32), tl.float32)
        return convert(value)

    interpreter._implicit_cvt = convert_more
    rms_norm.rsqrt = lambda x: tl.rsqrt(x)  # looked up when a kernel runs: the interpreter replaces it
    gelu.tanh = lambda x: 2 * tl.sigmoid(2 * x) - 1


if __name__ == "__main__":
    if os.environ.get("TRITON_INTERPRET") == "1":
        complete_interpreter()
    print(json.dumps(distances("cuda" if torch.cuda.is_available() else "cpu")))
