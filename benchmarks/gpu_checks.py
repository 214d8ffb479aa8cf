"""Checks that come before any speed on a GPU. Each function returns figures; one that is off is an ``AssertionError`` that names it.

``tests/gpu`` runs the same functions. On a CPU they run too, on the kernels that a CPU has, and say so.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gpu_kernels import compiled_blocks, liger
from gpu_sides import built_engine, tokens
from torch import Tensor

MOST = 2e-2
"""Largest error of attention in bf16, relative to fp64: 2 ** -8 for each of queries, keys, probabilities and values, added up."""


def device() -> torch.device:
    """The GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def versions(folder: Path) -> dict[str, Any]:
    """Return what is installed, and what the GPU is."""
    from importlib.metadata import version

    from mt_core.nn.varlen import varlen_kernel

    kernel = varlen_kernel()
    found: dict[str, Any] = {name: version(name) for name in ("torch", "deepspeed", "transformers")}
    found |= {"python": platform.python_version(), "device": "cpu: no figure here is from a GPU"}
    found["varlen_attn"] = None if kernel is None else str(inspect.signature(kernel))
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found |= {"device": properties.name, "gib": properties.total_memory / 2**30, "cuda": torch.version.cuda}
        found["capability"] = ".".join(map(str, torch.cuda.get_device_capability()))
    return found


def products(folder: Path) -> dict[str, Any]:
    """Return TFLOP/s of one large product in bf16 and in fp8, both casts apart, and GB/s of copies from the host."""
    rows, width, out = (8192, 4096, 14_336) if torch.cuda.is_available() else (64, 64, 64)
    one, other = (torch.randn(shape, device=device(), dtype=torch.bfloat16) for shape in ((rows, width), (out, width)))
    scale = torch.ones((), device=device())
    eight = [each.to(torch.float8_e4m3fn) for each in (one, other)]
    work = 2e-12 * rows * width * out

    def in_fp8() -> Tensor:
        return torch._scaled_mm(eight[0], eight[1].t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)

    found = {"bf16_tflops": work / seconds(lambda: one @ other.t()), "fp8_tflops": work / seconds(in_fp8)}
    host = torch.empty(2**28 if torch.cuda.is_available() else 2**16, dtype=torch.uint8)
    found["pageable_gb_s"] = host.numel() / seconds(lambda: host.to(device(), copy=True)) / 1e9
    if torch.cuda.is_available():
        pinned = host.pin_memory()
        found["pinned_gb_s"] = host.numel() / seconds(lambda: pinned.to(device(), non_blocking=True)) / 1e9
    return found


def seconds(work: Callable[[], object], times: int = 10) -> float:
    """Return the fewest seconds of a call, until the device has done all of it."""
    best = float("inf")
    for _ in range(times):
        wait()
        began = time.perf_counter()
        work()
        wait()
        best = min(best, time.perf_counter() - began)
    return best


def wait() -> None:
    """Wait until the device has done all that it was told."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "packed": {"packed": True},
    "window": {"window": 100},
    "packed window": {"packed": True, "window": 100},
    "packed sinks": {"packed": True, "sinks": True},
    "soft-cap": {"packed": True, "softcap": 30.0},
    "soft-cap and window": {"softcap": 30.0, "window": 100},
    "chunks": {"chunk": 128},
}


def attention(folder: Path) -> dict[str, Any]:
    """Compare each form of attention in bf16 with fp64 on the host, forward and gradients; returns the largest relative difference."""
    found = {name: _attention_error(dict(form)) for name, form in FORMS.items()}
    off = {name: error for name, error in found.items() if not error <= MOST}
    assert not off, f"attention differs from fp64 by more than {MOST}: {off}"
    return found


def _attention_error(form: dict[str, Any]) -> float:
    from mt_core.nn import BlockContext, SdpaAttention

    generator = torch.Generator().manual_seed(0)
    rows, length, heads, kv, width = 2, 384, 8, 2, 64
    lengths = ((200, 100, 84), (384,)) if form.pop("packed", False) else ((384,), (384,))
    drawn = [torch.randn(rows, length, n, width, generator=generator).bfloat16() for n in (heads, kv, kv)]
    sinks = torch.randn(heads, generator=generator) if form.pop("sinks", False) else None
    grad = torch.randn(rows, length, heads, width, generator=generator).bfloat16()

    def run(where: torch.device, dtype: torch.dtype) -> list[Tensor]:
        inputs = [each.to(where, dtype, copy=True).requires_grad_() for each in drawn]
        ids = torch.tensor([[n for n, size in enumerate(row) for _ in range(size)] for row in lengths])
        positions = torch.tensor([[p for size in row for p in range(size)] for row in lengths])
        context = BlockContext(
            positions_BT=positions.to(where),
            document_ids_BT=ids.to(where),
            attention=SdpaAttention(),
            document_lengths=lengths,
        )
        more: dict[str, Any] = {"sinks_N": sinks.to(where, dtype)} if sinks is not None else {}
        q_BTNH, k_BSKH, v_BSKW = inputs
        out = context.attention(q_BTNH, k_BSKH, v_BSKW, context, **form, **more)
        out.backward(grad.to(where, dtype))  # type: ignore[no-untyped-call]
        return [each.detach().double().cpu() for each in (out, *(x.grad for x in inputs if x.grad is not None))]

    exact, ours = run(torch.device("cpu"), torch.float64), run(device(), torch.bfloat16)
    return max(float((one - other).norm() / other.norm()) for one, other in zip(ours, exact, strict=True))


def chunked_loss(folder: Path) -> dict[str, Any]:
    """Compare the loss in chunks with that of whole logits in fp32, value and gradients."""
    from mt_core.nn import chunked_loss as in_chunks

    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(shape, generator=generator) * 0.1 for shape in ((1500, 64), (512, 64)))
    labels = torch.randint(0, 512, (1500,), generator=generator)

    def run(where: torch.device, dtype: torch.dtype, *, whole: bool) -> list[Tensor]:
        head = torch.nn.Linear(64, 512, bias=False, device=where, dtype=dtype)
        with torch.no_grad():
            head.weight.copy_(weight)
        x = hidden.to(where, dtype, copy=True).requires_grad_()
        if whole:
            loss = torch.nn.functional.cross_entropy(head(x).float(), labels.to(where), reduction="sum")
        else:
            loss = in_chunks(head, x, labels.to(where))
        loss.backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
        assert head.weight.grad is not None
        return [each.detach().double().cpu() for each in (loss, x.grad, head.weight.grad)]

    exact = run(torch.device("cpu"), torch.float32, whole=True)
    errors = {}
    for dtype, most in ((torch.float32, 1e-4), (torch.bfloat16, 2e-2)):
        ours = run(device(), dtype, whole=False)
        errors[str(dtype)] = max(float((a - b).norm() / b.norm()) for a, b in zip(ours, exact, strict=True))
        assert errors[str(dtype)] <= most, (
            f"the loss in chunks is off by {errors[str(dtype)]} in {dtype}; {most} is allowed"
        )
    return errors


def norms(folder: Path) -> dict[str, Any]:
    """Compare each form of RMSNorm with fp64 on the host, value and gradients; returns the largest relative difference of each."""
    from mt_core.nn import RMSNorm

    generator = torch.Generator().manual_seed(0)
    x, weight, grad = (torch.randn(shape, generator=generator) for shape in ((3, 500, 2048), (2048,), (3, 500, 2048)))

    def values(dtype: torch.dtype, where: torch.device) -> list[Tensor]:
        return [each.to(dtype).to(where, copy=True) for each in (x, weight, grad)]

    def exact(dtype: torch.dtype, centred: bool) -> list[Tensor]:
        x_, weight_, grad_ = (each.double() for each in values(dtype, torch.device("cpu")))
        x_, weight_ = x_.requires_grad_(), weight_.requires_grad_()
        out = x_ * (x_.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * (weight_ + centred)
        return [out.detach(), *torch.autograd.grad(out, (x_, weight_), grad_)]

    def ours(dtype: torch.dtype, form: dict[str, bool]) -> list[Tensor]:
        x_, weight_, grad_ = values(dtype, device())
        norm = RMSNorm(2048, **form).to(device(), dtype)
        norm.weight.data = weight_
        out = norm(x_.requires_grad_())
        return [each.detach().double().cpu() for each in (out, *torch.autograd.grad(out, (x_, norm.weight), grad_))]

    found = {}
    for name in ("plain", "centred", "rounds_last"):
        form = {} if name == "plain" else {name: True}
        for dtype, most in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
            pairs = zip(ours(dtype, form), exact(dtype, name == "centred"), strict=True)
            error = max(float((a - b).norm() / b.norm()) for a, b in pairs)
            assert error <= most, f"the norm ({name}, {dtype}) is off by {error}; {most} is allowed"
            found[f"{name}, {dtype}"] = error
    return found


def gradient_norm(folder: Path) -> dict[str, Any]:
    """Compare the norm of gradients with that of the same numbers in fp64 on the host."""
    from mt_train.engine.norms import squared_norm

    generator = torch.Generator().manual_seed(0)
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        given = [torch.randn(size, generator=generator).to(dtype) for size in (3_000_001, 7, 70_000)]
        ours = squared_norm([each.to(device()) for each in given], torch.device("cpu")).sqrt()
        exact = torch.cat(given).double().norm()
        found[str(dtype)] = float((ours - exact).abs() / exact)
        assert found[str(dtype)] <= 1e-12, f"the norm of gradients in {dtype} is off by {found[str(dtype)]}"
    return found


def adapters(folder: Path) -> dict[str, Any]:
    """Take two steps with every installed adapter; those that fail are named with their reason."""
    import mt_train
    from mt_core.plugins.host import PluginHost

    rows = _write_rows(folder)
    names = sorted({offer.component.name for offer in PluginHost.discover().offers("adapter")})
    failed = {}
    for name in names:
        config = {**_tiny_run(rows), "adapter": name}
        config["train"] = {**config["train"], "steps": 2}
        try:
            mt_train.train(config, output=None)
        except Exception as error:  # noqa: BLE001 (each is reported, and the next one tried)
            failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    assert not failed, f"{len(failed)} of {len(names)} adapters failed: {failed}"
    return {"adapters": len(names)}


def _write_rows(folder: Path) -> Path:
    path = folder / "rows.jsonl"
    path.write_text(
        "".join(json.dumps({"text": f"row {n} says {'word ' * (n % 7 + 3)}{n * n}."}) + "\n" for n in range(64))
    )
    return path


def _tiny_run(rows: Path) -> dict[str, Any]:
    """A run of the tiny shape in bf16; biases are for adapters that train nothing else."""
    shape = {"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 128, "attention_bias": True}
    return {
        "model": {"name": "llama", **shape},
        "dataset": {"name": "jsonl", "path": str(rows)},
        "objective": "pretrain",
        "train": {"steps": 24, "sequence_len": 64, "micro_batch_size": 4, "dtype": "bf16", "deterministic": True},
        "eval": {"samples": 0},
    }


def resume(folder: Path) -> dict[str, Any]:
    """Kill a run behind a checkpoint, let it go on, and compare its last checkpoint with that of a run that was left alone."""
    config = folder / "config.json"
    run = {**_tiny_run(_write_rows(folder)), "checkpoint": {"every_steps": 8, "keep_last": 9}}
    config.write_text(json.dumps(run))
    command = [sys.executable, "-m", "mt_train.cli.train", "--config", str(config)]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    whole, killed = folder / "whole", folder / "killed"
    subprocess.run([*command, "--output", str(whole)], check=True, **quiet)
    process = subprocess.Popen([*command, "--output", str(killed)], **quiet)
    while process.poll() is None and not _checkpoints(killed):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    reached = len(_checkpoints(killed))
    subprocess.run([*command, "--output", str(killed), "--resume", "auto"], check=True, **quiet)
    first, second = (_hashes(_checkpoints(path)[-1]) for path in (whole, killed))
    assert first
    assert first == second, f"a run that was killed ends otherwise: {sorted(first.items() ^ second.items())}"
    return {"checkpoints_before_the_kill": reached, "equal_files": len(first)}


def _checkpoints(run: Path) -> list[Path]:
    """Return the folders of whole checkpoints, the earliest first."""
    found = [path for path in (run / "checkpoints").glob("step-*") if (path / "manifest.json").is_file()]
    return sorted(found, key=lambda path: int(path.name.partition("-")[2]))


def _hashes(checkpoint: Path) -> dict[str, str]:
    files = checkpoint.rglob("*.safetensors")
    return {str(path.relative_to(checkpoint)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def few_steps(steps: int, changes: dict[str, Any]) -> list[float]:
    """Train the tiny shape for some steps, and return the losses."""
    from mt_core.nn import TokenObjective
    from mt_core.rows import Sample

    shape = {"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 128, "vocab_size": 512}
    changes = {**changes, "model": {"name": "llama", **shape}}
    objective, losses = TokenObjective(), []
    with built_engine(None, changes, steps=steps, length=64, rows=2, say=lambda text: None) as engine:
        for step in range(steps):
            drawn = tokens(step, 2, 64, 512)
            batch = objective.collate([[Sample(row.tolist(), [True] * 64, "row")] for row in drawn], length=64)
            losses.append(engine.train_step([batch.with_index()]).loss)
    return losses


def losses_in_fp32(folder: Path) -> dict[str, Any]:
    """Return 20 losses of the tiny shape in fp32: the same on a GPU and on a CPU to 1e-4."""
    return {"losses": few_steps(20, {"train": {"dtype": "fp32"}})}


CHECKS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "versions": versions,
    "products": products,
    "attention": attention,
    "chunked-loss": chunked_loss,
    "norms": norms,
    "gradient-norm": gradient_norm,
    "compiled-blocks": compiled_blocks,
    "liger": liger,
    "adapters": adapters,
    "resume": resume,
    "fp32": losses_in_fp32,
    "fp32-on-the-host": losses_in_fp32,
}
