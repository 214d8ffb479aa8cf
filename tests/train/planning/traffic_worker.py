"""Counts the bytes that ranks exchange in a step of real runs, by collective. Run by test_traffic.py.

``traffic_worker.py CASES ROWS OUT`` with JSON: name -> config. Bytes are what a ring brings to a rank.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

SHARES: dict[str, float] = {
    "all_gather_into_tensor": 1,
    "reduce_scatter_tensor": 1,
    "reduce": 1,
    "all_to_all_single": 1,
    "all_reduce": 2,
}
"""(W - 1) / W of the larger tensor comes to each of W ranks, or twice that."""
FEW = 256
"""Bytes of an all-reduce that carries figures of a step, and no gradients."""
Calls = dict[str, list[float]]


class Wire:
    """Calls of torch.distributed since the last ``take``."""

    def __init__(self) -> None:
        self._calls: Calls = {}
        for name in SHARES:  # before DeepSpeed takes them out of torch
            setattr(dist, name, self._counted(name, getattr(dist, name)))
        for name in ("send", "recv"):
            setattr(dist, name, self._counted(name, getattr(dist, name)))

    def _counted(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def counted(*arguments: Any, **options: Any) -> Any:
            given = [each for each in (*arguments, *options.values()) if isinstance(each, torch.Tensor)]
            size = max(each.numel() * each.element_size() for each in given)
            if size > FEW or name != "all_reduce":
                world = dist.get_world_size(options.get("group"))
                share = SHARES[name] * (world - 1) / world if name in SHARES else 1
                self._calls.setdefault(name, []).append(share * size)
            return original(*arguments, **options)

        return counted

    def take(self) -> Calls:
        calls, self._calls = self._calls, {}
        return calls


def listen(step: Callable[..., Any], wire: Wire, steps: list[Calls]) -> Callable[..., Any]:
    """Note what each step exchanges."""

    @functools.wraps(step)
    def train_step(*arguments: Any, **options: Any) -> Any:
        wire.take()
        result = step(*arguments, **options)
        steps.append(wire.take())
        return result

    return train_step


def main(cases: dict[str, Any], out: Path, wire: Wire) -> None:
    from mt_train import train
    from mt_train.engine.engine import Engine
    from mt_train.engine.pipeline import PipelineEngine

    steps: list[Calls] = []
    for engine in (Engine, PipelineEngine):
        engine.train_step = listen(engine.train_step, wire, steps)  # type: ignore[method-assign, attr-defined]
    found = {}
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - what a run shows is not looked at
    for number, (name, config) in enumerate(cases.items()):
        os.environ["MT_STORE"] = str(out.parent / f"store-{number}-of-{len(cases)}")
        steps.clear()
        train(config, output=out.parent / name)
        found[name] = steps[-1]  # DeepSpeed looks at the order of modules first
        gc.collect()
    if int(os.environ["RANK"]) == 0:
        out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[3]), Wire())
