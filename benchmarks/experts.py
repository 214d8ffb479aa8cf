"""A mixture's block beside transformers' on the same weights: milliseconds of a forward and backward, and what it keeps for the backward.

``python benchmarks/experts.py [--pairs 5] [--tokens 2048] [--experts 64] [--width 512] [--hidden 256] [--top-k 4] [--device cpu]
[--dtype fp32]``. Ways are run in turn, in pairs that alternate, after their outputs and gradients have been compared: our fused and
listed forms, and transformers' ``eager`` (a loop over experts) and ``grouped_mm``. CPU time on CPUs, the clock on GPUs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from mt_core import ExpertLayout, RouterOptions
from mt_core.nn import BlockContext, Experts, Mixture, Router, SdpaAttention
from mt_core.weights import listed_experts

DTYPES = {"fp32": (torch.float32, 1e-4), "bf16": (torch.bfloat16, 3e-2)}
"""Name → dtype, and how far outputs and gradients may be apart, as a share of the largest number."""
THEIRS = ("eager", "grouped_mm")


def main() -> None:
    """Compare, time, and print a table."""
    options = parse()
    torch.manual_seed(0)
    ways = build(options)
    x_BTD = torch.randn(1, options.tokens, options.width, device=options.device, dtype=DTYPES[options.dtype][0])
    outcomes = {name: outcome(run, module, x_BTD) for name, (run, module) in ways.items()}
    check(outcomes, DTYPES[options.dtype][1])
    times: dict[str, list[float]] = {name: [] for name in ways}
    for pair in range(options.pairs):
        for name in list(ways)[:: 1 if pair % 2 else -1]:
            times[name].append(seconds(*ways[name], x_BTD))
    kept = {name: kept_bytes(run, module, x_BTD) for name, (run, module) in ways.items()}
    print(
        f"{options.experts} experts of {options.hidden}, {options.top_k} a token, width {options.width}, {options.tokens} tokens"
    )
    best = min(median(each) for name, each in times.items() if name.startswith("transformers"))
    for name, each in times.items():
        half = median(each)
        spread = f"{min(each) * 1e3:.1f}-{max(each) * 1e3:.1f}"
        print(
            f"{name:26} {half * 1e3:9.1f} ms ({spread:>15}) {best / half:6.2f} x   {kept[name] / 2**20:8.1f} MiB kept"
        )
    if options.json is not None:
        Path(options.json).write_text(json.dumps({"options": vars(options), "seconds": times, "kept": kept}, indent=1))


def parse() -> Any:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("pairs", 5), ("tokens", 2048), ("experts", 64), ("width", 512), ("hidden", 256), ("top-k", 4)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--json", help="file for the numbers")
    return parser.parse_args()


Run = Callable[[Tensor], Tensor]


def build(options: Any) -> dict[str, tuple[Run, nn.Module]]:
    """Every way on the same weights, by name."""
    from transformers import Qwen3MoeConfig
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

    def theirs(how: str) -> nn.Module:
        config = Qwen3MoeConfig(
            hidden_size=options.width,
            moe_intermediate_size=options.hidden,
            num_experts=options.experts,
            num_experts_per_tok=options.top_k,
            norm_topk_prob=True,
        )
        config._experts_implementation = how
        return Qwen3MoeSparseMoeBlock(config)  # type: ignore[no-any-return]

    first = theirs(THEIRS[0])
    for parameter in first.parameters():
        nn.init.normal_(parameter, 0, 0.05)
    weights = first.state_dict()
    layout = ExpertLayout(n_experts=options.experts, width=options.width, hidden=options.hidden)
    router = RouterOptions(n_experts=options.experts, top_k=options.top_k, normalise=True)
    ours = {name: Mixture(Router(router, options.width), Experts(layout), index=0) for name in ("fused", "listed")}
    ours["listed"].experts = ours["listed"].experts.make_listed()  # type: ignore[operator]
    ours["fused"].load_state_dict(weights)
    loaders = listed_experts({name: value.clone for name, value in weights.items()}, {"experts": layout})
    ours["listed"].load_state_dict({name: load() for name, load in loaders.items()})
    positions = torch.arange(options.tokens, device=options.device)[None]
    context = BlockContext(positions, torch.zeros_like(positions), SdpaAttention())
    blocks = {f"transformers, {how}": theirs(how) for how in THEIRS}
    for block in blocks.values():
        block.load_state_dict(weights)
    dtype = DTYPES[options.dtype][0]
    modules = {name: each.to(options.device, dtype) for name, each in ({**ours, **blocks}).items()}
    return {
        name: ((lambda x, each=each: each(x, context)) if isinstance(each, Mixture) else each, each)  # type: ignore[misc]
        for name, each in modules.items()
    }


def outcome(run: Run, module: nn.Module, x_BTD: Tensor) -> dict[str, Tensor]:
    """The output, and the gradients of input and router, whose names all forms share."""
    x_BTD = x_BTD.clone().requires_grad_(True)
    out_BTD = run(x_BTD)
    out_BTD.square().sum().backward()  # type: ignore[no-untyped-call]
    assert x_BTD.grad is not None, "it was asked for"
    found = {"output": out_BTD.detach(), "input": x_BTD.grad, "router": module.gate.weight.grad}  # type: ignore[union-attr]
    module.zero_grad(set_to_none=True)
    return found  # type: ignore[return-value]


def check(outcomes: dict[str, dict[str, Tensor]], tolerance: float) -> None:
    """Raise ``SystemExit`` where two ways are apart."""
    first, *others = outcomes
    for name in others:
        for what, wanted in outcomes[first].items():
            apart = float((outcomes[name][what].float() - wanted.float()).abs().max() / wanted.float().abs().max())
            if apart > tolerance:
                raise SystemExit(f"{name} is {apart:.1e} away from {first} in its {what}; nothing is timed")


def seconds(run: Run, module: nn.Module, x_BTD: Tensor, steps: int = 3) -> float:
    """Return the seconds of one forward and backward."""
    x_BTD = x_BTD.clone().requires_grad_(True)
    on_gpu = x_BTD.device.type == "cuda"
    clock = time.perf_counter if on_gpu else time.process_time
    for number in range(steps + 1):
        if number == 1:
            _wait(on_gpu)
            start = clock()
        run(x_BTD).sum().backward()  # type: ignore[no-untyped-call]
        module.zero_grad(set_to_none=True)
    _wait(on_gpu)
    return (clock() - start) / steps


def _wait(on_gpu: bool) -> None:
    if on_gpu:
        torch.cuda.synchronize()


def kept_bytes(run: Run, module: nn.Module, x_BTD: Tensor) -> int:
    """Return the bytes of distinct tensors, weights apart, that a forward keeps for its backward."""
    own = {each.untyped_storage().data_ptr() for each in (*module.parameters(), x_BTD)}
    seen: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run(x_BTD.requires_grad_(True))
    return sum(seen.values())


if __name__ == "__main__":
    main()
