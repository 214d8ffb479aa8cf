"""Bytes on the wire: those that the planner counts against those of real steps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mt_core.plugins.host import PluginHost
from mt_train.assemble.parts import Parts
from mt_train.assemble.run import RunOptions
from mt_train.planning.dry_run import dry_run
from mt_train.planning.gpus import find_gpu
from mt_train.planning.layouts import time_layout
from mt_train.planning.step_time import WIRE, Cluster
from mt_train.plugins.resolve import resolve

WORLD, BLOCKS, DIM, VOCABULARY = 2, 4, 64, 256
BLOCK = 2 * DIM * DIM + 2 * DIM * 32 + 3 * DIM * 160
"""Numbers of a block's matrices."""
LARGE = {
    "stage3_prefetch_bucket_size": BLOCK // 4,
    "stage3_max_live_parameters": BLOCK,
    "stage3_max_reuse_distance": 0,
}
"""The model as large beside DeepSpeed's sizes as one of 8 billion is: a block is four times what is gathered ahead."""
WHOLE_BLOCKS = {**LARGE, "stage3_prefetch_bucket_size": 2 * BLOCK, "stage3_max_live_parameters": 4 * BLOCK}
"""As large as one of 0.4 billion, of which two blocks are gathered ahead."""
ONCE = {"zero_optimization": {"use_multi_rank_bucket_allreduce": False}}
LORA = {"name": "lora", "rank": 4}


def config(
    *,
    dtype: str = "bf16",
    rounds: int = 1,
    recompute: bool = False,
    adapter: Any = None,
    sizes: dict[str, int] = LARGE,
    world: int = WORLD,
    **parallel: Any,
) -> dict[str, Any]:
    """A run of three steps; ``rounds``: micro-batches of a step."""
    together = {"sequence", "pipeline"} & parallel.keys()
    raw: dict[str, Any] = {
        "model": {"name": "llama", "n_layers": BLOCKS, "dim": DIM, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 160},
        "train": {
            "steps": 3,
            "micro_batch_size": 2,
            "global_batch_size": 2 * rounds * (1 if together else world),
            "sequence_len": 64,
            "dtype": dtype,
            "activation_checkpointing": recompute,
        },
        "parallel": {"timeout_seconds": 120, **parallel},
        "data": {"eval": None, "read_rows": 64, "batching": "packing"},
        "eval": {"samples": 0},
        "checkpoint": {"every_steps": 500},
    }
    if parallel.get("zero_stage") == 3:
        raw["parallel"]["deepspeed"] = {"zero_optimization": sizes}
    return raw | ({"adapter": adapter} if adapter else {})


def mixture_config(**options: Any) -> dict[str, Any]:
    """A mixture of which two ranks divide the experts; those are two fifths of its numbers."""
    found = config(expert=2, **options)
    found["model"] |= {"name": "qwen", "n_experts": 4, "top_k": 2, "expert_dim": 32}
    return found


CASES = {
    "zero 0": config(zero_stage=0, dtype="fp32"),
    "zero 1": config(zero_stage=1, dtype="fp32"),
    "zero 1, own masters": config(zero_stage=1),
    "zero 1, masters of deepspeed": config(zero_stage=1, masters="deepspeed"),
    "zero 1, lora": config(zero_stage=1, adapter=LORA),
    "zero 2": config(zero_stage=2),
    "zero 2, two micro-batches": config(zero_stage=2, rounds=2),
    "zero 2, reduced to each rank": config(zero_stage=2, rounds=2, deepspeed=ONCE),
    "zero 1, reduced to each rank": config(zero_stage=1, dtype="fp32", deepspeed=ONCE),
    "sequence": config(zero_stage=1, sequence=2),
    "sequence, recomputed": config(zero_stage=1, sequence=2, recompute=True),
    "pipeline": config(pipeline=2, rounds=2),
}
DIVIDED = {
    "zero 3": config(zero_stage=3),
    "zero 3, two micro-batches": config(zero_stage=3, rounds=2),
    "zero 3, recomputed": config(zero_stage=3, recompute=True),
    "zero 3, lora": config(zero_stage=3, adapter=LORA),
}
MIXTURES = {
    "mixture, zero 0": mixture_config(zero_stage=0, dtype="fp32"),
    "mixture, zero 1": mixture_config(zero_stage=1),
    "mixture, zero 1, recomputed": mixture_config(zero_stage=1, recompute=True),
    "mixture, zero 2": mixture_config(zero_stage=2, rounds=2),
    "mixture, zero 3": mixture_config(zero_stage=3),
}
COPIES = 4
"""Ranks of which two hold the same experts."""
COPIED_MIXTURES = {
    f"copied mixture, zero {stage}": mixture_config(zero_stage=stage, world=COPIES) for stage in (1, 2, 3)
}


@pytest.fixture(scope="module")
def steps(
    launch: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory, needs: Callable[[str], None]
) -> dict[str, dict[str, list[float]]]:
    """Bytes of each collective of a step, by its name."""
    needs("mt-plugin-llama")
    needs("mt-plugin-adapters")
    needs("mt-plugin-qwen")
    cases = CASES | DIVIDED | MIXTURES | {"blocks": config(zero_stage=3, sizes=WHOLE_BLOCKS)}
    worker, folder = "train/planning/traffic_worker.py", tmp_path_factory.mktemp("traffic")
    found = launch(worker, WORLD, folder, cases, timeout=600)
    return found | launch(worker, COPIES, folder, COPIED_MIXTURES, timeout=600)


def count_bytes(raw: dict[str, Any], world: int = WORLD) -> float:
    """Bytes of a step on paper: its seconds over a wire of a byte a second, beside which computing is nothing."""
    parts = Parts.of(resolve(copy.deepcopy(raw), PluginHost.discover()))
    paper = dry_run(parts, RunOptions(output=None), world=world, device="cpu")
    wire = Cluster(gpu=replace(find_gpu("h100-80g"), link=1 / WIRE), per_node=world, network=1)
    return time_layout(paper, paper.parts.config, paper.plan, wire).network


@pytest.mark.parametrize("name", CASES)
def test_a_step_brings_each_rank_the_bytes_that_the_planner_counts(steps: dict[str, Any], name: str) -> None:
    """A pipeline sends the shapes of what it sends besides."""
    found = sum(map(sum, steps[name].values()))
    assert found == pytest.approx(count_bytes(CASES[name]), rel=0.04 if name == "pipeline" else 0.005)


@pytest.mark.parametrize("name", MIXTURES | COPIED_MIXTURES)
def test_only_ranks_that_hold_the_same_experts_share_them(steps: dict[str, Any], name: str) -> None:
    """Tokens choose experts unevenly, and how many come is sent besides."""
    world = COPIES if name in COPIED_MIXTURES else WORLD
    found, paper = sum(map(sum, steps[name].values())), count_bytes((MIXTURES | COPIED_MIXTURES)[name], world)
    assert found == pytest.approx(paper, rel=0.02)


@pytest.mark.parametrize("name", DIVIDED)
def test_at_zero_3_only_what_is_whole_between_the_passes_is_not_gathered_twice(
    steps: dict[str, Any], name: str
) -> None:
    """At most a block, which may be whole, and the head."""
    found, paper = sum(map(sum, steps[name].values())), count_bytes(DIVIDED[name])
    spared = len(steps[name]["reduce_scatter_tensor"]) * (BLOCK + VOCABULARY * DIM)  # of 2 bytes, a half from each rank
    assert paper - spared <= found <= 1.005 * paper


def test_at_zero_3_an_adapter_reduces_its_own_gradients_alone(steps: dict[str, Any]) -> None:
    whole, adapted = (sum(steps[name]["reduce_scatter_tensor"]) for name in ("zero 3", "zero 3, lora"))
    assert adapted < whole / 10


def test_at_zero_3_blocks_that_are_gathered_ahead_take_few_collectives(steps: dict[str, Any]) -> None:
    """Forward, backward and gradients together; norms travel with their neighbours."""
    assert sum(map(len, steps["blocks"].values())) <= 3 * BLOCKS
    (smallest, *_) = sorted(steps["zero 3"]["all_gather_into_tensor"])
    assert smallest > DIM, "no norm travels alone"
