"""Trains on streams on many layouts in one launch, encoded in shares and by each rank alone. Run by test_node_group.py.

``shared_stream_worker.py CASES ROWS OUT`` with JSON: name -> ``config``; ``alone`` where no rank shares, ``nodes`` how many machines
the ranks are taken for, ``resume`` the case that goes on.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from mt_train import train
from mt_train.assemble import steps
from mt_train.assemble.session import Session
from mt_train.data.stream import blocks, shares
from mt_train.engine import node_group
from mt_train.tracking.metrics import MetricsFile

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
share_blocks, encode, gather = steps.share_blocks, blocks.encode, node_group._gather
session_start, new_group = Session._on_step_start, dist.new_group


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors of a batch, of its values by name, and of what it has of media."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for name in sorted(value):
            yield from tensors(value[name])
    elif hasattr(value, "__dataclass_fields__"):
        for each in fields(value):
            yield from tensors(getattr(value, each.name))


class Watch:
    """Record of a run: the batches of each step, groups that are made, rows that are encoded, and collectives for them."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {"batches": [], "places": [], "rows": [], "groups": []}
        self.found |= {"encoded": 0, "shares": 0, "gathers": 0}
        self.session: Session | None = None

    def begin(self, *, alone: bool, nodes: int) -> None:
        steps.share_blocks = (lambda *given, **named: None) if alone else share_blocks
        node_group.node_identity = lambda: f"node {RANK * nodes // WORLD}"
        Session._on_step_start = lambda session, now, window: self.step(session, now, window)  # type: ignore[method-assign]
        blocks.encode, shares.encode = self.encode, self.encode_share
        node_group._gather = self.gather
        dist.new_group = self.new_group

    def step(self, session: Session, now: Any, window: Any) -> None:
        self.session = session
        digest = hashlib.sha256()
        for tensor in tensors(dict(enumerate(window.batches))):
            digest.update(repr((tensor.dtype, tensor.shape)).encode() + tensor.contiguous().view(-1).numpy().tobytes())
        self.found["batches"].append(digest.hexdigest())
        self.found["rows"].append(list(window.row_ids))
        self.found["places"].append(asdict(window.after))
        session_start(session, now, window)

    def encode(self, dataset: Any, indices: Sequence[int], *given: Any) -> Any:
        self.found["encoded"] += len(indices)
        return encode(dataset, indices, *given)

    def encode_share(self, *given: Any) -> Any:
        self.found["shares"] += 1
        return self.encode(*given)

    def gather(self, own: torch.Tensor, *given: Any) -> Any:
        self.found["gathers"] += 1
        return gather(own, *given)

    def new_group(self, ranks: Any = None, **options: Any) -> Any:
        if options.get("backend") == "gloo":
            self.found["groups"].append(ranks)
        return new_group(ranks, **options)


def main(cases: dict[str, Any], out: Path) -> None:
    found = {}
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - what a run shows is not looked at
    for number, (name, case) in enumerate(cases.items()):
        os.environ["MT_STORE"] = str(out.parent / f"store-{number}-of-{WORLD}")
        watch, folder = Watch(), out.parent / f"{name}-{WORLD}"
        watch.begin(alone=case.get("alone", False), nodes=case.get("nodes", 1))
        if "resume" in case:
            train(case["config"], resume=out.parent / case["resume"])
            folder = out.parent / case["resume"]
        else:
            train(case["config"], output=folder)
        assert watch.session is not None
        watch.found["report"] = watch.session.data.stream.report.as_dict()
        watch.found["losses"] = [
            [line["loss"], line["grad_norm"], line.get("eval_loss")]
            for line in MetricsFile(folder / "metrics.jsonl").read()
        ]
        found[name] = watch.found
        gc.collect()
    out.with_name(f"rank-{RANK}-of-{WORLD}.json").write_text(json.dumps(found))
    if RANK == 0:
        out.write_text("{}")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[3]))
