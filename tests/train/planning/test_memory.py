"""What a plan says of memory is what a run then holds: live tensors of two real processes, in one launch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sampled_cases import Cases, SampledCases

WORKER = Path(__file__).with_name("memory_worker.py")
SIZES = ("small", "middle", "large")
OWN: dict[str, dict[str, Any]] = {"whole": {"micro": 1}, "buckets": {"micro": 1, "bucket": 40_000}}
OWN |= {
    "buckets-several": {"bucket": 40_000},
    "theirs": {"masters": "deepspeed"},
    "theirs-whole": {"masters": "deepspeed", "micro": 1},
}
"""Masters of our own, and DeepSpeed's; ``bucket`` is smaller than the model."""
PARTS = ("weights", "gradients", "optimizer")
CASES: dict[str, dict[str, Any]] = {
    f"{size}-{stage}": {"size": size, "stage": stage} for size in SIZES for stage in range(4)
}
CASES |= {f"bf16-{stage}": {"size": "middle", "stage": stage, "dtype": "bf16"} for stage in (1, 2, 3)}
CASES |= {f"bf16-1-{name}": {"size": "middle", "stage": 1, "dtype": "bf16", **case} for name, case in OWN.items()}
CASES |= {
    f"bf16-0-{micro}": {"size": "middle", "stage": 0, "dtype": "bf16", "optimizer": "adam-mini", "micro": micro}
    for micro in (1, 2)
}
CASES |= {
    "offload-1": {"size": "large", "stage": 1, "offload": "optimizer"},
    "offload-2": {"size": "large", "stage": 2, "offload": "optimizer"},
    "offload-3": {"size": "large", "stage": 3, "offload": "parameters"},
    "offload-bf16-1": {"size": "large", "stage": 1, "offload": "optimizer", "dtype": "bf16"},
    "offload-bf16-2": {"size": "large", "stage": 2, "offload": "optimizer", "dtype": "bf16"},
    "offload-bf16-3": {"size": "large", "stage": 3, "offload": "parameters", "dtype": "bf16"},
    "pipeline": {"size": "middle", "stage": "auto", "pipeline": 2},
    "pipeline-bf16": {"size": "middle", "stage": "auto", "pipeline": 2, "dtype": "bf16"},
    "one-micro-batch": {"size": "middle", "stage": 2, "micro": 1},
    **{f"expert-{stage}": {"size": "middle", "stage": stage, "expert": 2} for stage in (0, 3)},
    "expert-bf16-1": {"size": "middle", "stage": 1, "expert": 2, "dtype": "bf16"},
    "tied": {"size": "middle", "stage": 2, "model": {"tie_embeddings": True}},
}
SAMPLED = (
    *(f"small-{stage}" for stage in range(4)),
    *(
        "middle-1",
        "large-3",
        "bf16-2",
        "bf16-1-buckets-several",
        "bf16-1-theirs",
        "bf16-0-1",
        "offload-2",
        "offload-bf16-3",
    ),
    *("pipeline-bf16", "one-micro-batch", "expert-3", "tied"),
)
"""Cases of each change; the others at night."""
REST = [pytest.param(name, marks=pytest.mark.night) for name in CASES if name not in SAMPLED]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> SampledCases:
    sample = {name: CASES[name] for name in SAMPLED}
    rest = {name: case for name, case in CASES.items() if name not in SAMPLED}
    return SampledCases(partial(measure, tmp_path_factory), sample, rest)


def measure(tmp_path_factory: pytest.TempPathFactory, cases: Cases) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("memory")
    rows, out = folder / "rows.jsonl", folder / "results.json"
    rows.write_text("".join(json.dumps({"text": f"row number {number} of some"}) + "\n" for number in range(40)))
    base = {**os.environ, "WORLD_SIZE": "2", "MT_STORE": str(folder / "store"), "OMP_NUM_THREADS": "1"}
    base["GLOO_SOCKET_IFNAME"] = "lo"
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), json.dumps(cases), str(rows), str(out)],
            env={**base, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=1500)[1].decode() for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(error[-3000:] for error in errors)
    return json.loads(out.read_text())


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("case", [*SAMPLED, *REST])
def test_a_plan_is_within_a_fifth_of_the_live_tensors(results: SampledCases, case: str, part: str) -> None:
    for rank, found in enumerate(results[case]):
        planned, live = found["planned"][part], found["measured"][part]
        assert abs(planned - live) <= 0.2 * live, (rank, planned, live)
