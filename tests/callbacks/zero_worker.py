"""Averages the weights of the same run at every ZeRO stage, in one launch, and saves what came of each. Run by test_averaging.py."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Any

from mt_train import train


def raw_config(world: int, stage: int, dtype: str = "fp32") -> dict[str, Any]:
    return {
        "model": {"name": "llama", "n_layers": 1, "dim": 32, "n_heads": 2, "n_kv_heads": 1},
        "train": {
            "steps": 4,
            "micro_batch_size": 4 // world,
            "global_batch_size": 4,
            "sequence_len": 64,
            "dtype": dtype,
        },
        "parallel": {"zero_stage": stage},
        "data": {"eval": 4, "read_rows": 12},
        "eval": {"every_steps": 1, "samples": 0},
        "checkpoint": {"every_steps": 2},
        "callbacks": {"ema": {"decay": 0.5, "warmup": False}},
    }


def main(folder: Path, world: int) -> None:
    for stage in range(4):
        anew(folder)
        train(raw_config(world, stage), output=folder / f"zero-{stage}")
    anew(folder)
    train(raw_config(world, 1, "bf16"), output=folder / "bf16")
    anew(folder)
    train(raw_config(world, 3), resume=folder / "zero-2/checkpoints/step-00000002")  # on another stage


def anew(folder: Path) -> None:
    """Each run's processes meet at a place of their own, and what the last one imported is left alone."""
    anew.count += 1
    os.environ["MT_STORE"] = str(folder / f"store-{anew.count}")
    gc.collect()
    gc.freeze()  # every start of DeepSpeed looks for garbage


anew.count = 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
