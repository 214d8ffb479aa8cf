"""Ranks that can hold different numbers of rows find one size, at every ZeRO stage, in one launch. Run by test_batch_size.py."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Any

import torch

from mt_core.nn import Block
from mt_train import train

LAYOUTS: dict[str, dict[str, Any]] = {
    "zero-1": {"zero_stage": 1},
    "zero-3": {"zero_stage": 3},
    "sequence": {"zero_stage": 2, "sequence": 2},
}


def raw_config(size: int | str, rows: int, parallel: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """A small run with dropout, which would not repeat if a random state had moved."""
    return {
        "model": {"name": "llama", "n_layers": 1, "dim": 32, "n_heads": 2, "n_kv_heads": 1, "dropout": 0.1},
        "train": {"steps": 2, "micro_batch_size": size, "global_batch_size": rows, "sequence_len": 32},
        "parallel": {"timeout_seconds": 60, **parallel},
        "data": {"eval": None, "read_rows": 4},
        "eval": {"samples": 0},
        **sections,
    }


def hold(most: int) -> None:
    """Blocks are out of memory above so many rows."""
    plain = Block.forward

    def forward(self: Block, hidden: Any, *given: Any, **options: Any) -> Any:
        if len(hidden) > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return plain(self, hidden, *given, **options)

    Block.forward = forward  # type: ignore[method-assign]


def main(folder: Path) -> None:
    hold((6, 4)[int(os.environ["RANK"])])
    for name, parallel in LAYOUTS.items():
        for size in ("auto", 4):
            gc.collect()
            gc.freeze()  # each size that is tried ends with a search for garbage
            os.environ["MT_STORE"] = str(folder / f"store-{name}-{size}")
            train(raw_config(size, 24, parallel), output=folder / f"{name}-{size}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
