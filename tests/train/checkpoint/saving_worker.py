"""Saves one checkpoint after another, and says which is whole, until it is killed. Run by test_crashes.py."""

from __future__ import annotations

import sys
from pathlib import Path

from mt_train.checkpoint.store import CheckpointStore, Retention


def main(folder: Path) -> None:
    store = CheckpointStore(folder)
    latest = store.latest()
    step = int(latest.name[-8:]) if latest else 0

    def write(staged: Path) -> list[Path]:
        files = [staged / "state" / f"rank-{rank:04d}.json" for rank in range(4)]
        for file in files:
            file.write_bytes(str(step).encode() * 5000)
        return files

    while True:
        step += 1
        store.save(step, write=write, manifest={}, keep=Retention(last=2))
        print(step, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
