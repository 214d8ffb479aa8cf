"""A token cache by the machines of a Ray cluster (docs/data.md): ``python examples/ray_build.py 64 --config run.yaml --data.cache FOLDER``.

The first word is the number of parts, the others are those of ``mt-data build``. Ray places the parts and starts those again whose
machine was lost; what they had encoded is kept. The folder is one that all machines share.
"""

from __future__ import annotations

import subprocess
import sys

import ray

CPUS = 4
"""Processors of a part."""


@ray.remote(num_cpus=CPUS, max_retries=3)
def encode(part: str, words: list[str]) -> None:
    """Encode one part."""
    subprocess.run(["mt-data", "build", "--part", part, "--data.workers", str(CPUS), *words], check=True)


if __name__ == "__main__":
    parts, words = int(sys.argv[1]), sys.argv[2:]
    ray.init()
    ray.get([encode.remote(f"{part}/{parts}", words) for part in range(parts)])
    sys.exit(subprocess.run(["mt-data", "build", "--finish", *words], check=False).returncode)
