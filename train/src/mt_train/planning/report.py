"""The plan of a run on named machines, as plain data: whether it fits, and its fastest layouts."""

from __future__ import annotations

from typing import Any

from mt_train.assemble.rollouts import longest_answered
from mt_train.planning.candidates import KEPT_FREE, USUAL_HOST, Candidate, Room
from mt_train.planning.dry_run import PaperRun, count_row_tokens
from mt_train.planning.fit import judge
from mt_train.planning.hardware import Hardware
from mt_train.planning.layouts import TimedLayout, find_layouts
from mt_train.planning.step_time import CONSTANTS, FITTED_LIKE, SMALLEST, Cluster

SECONDS_OF_A_DAY = 86_400


def room_of(hardware: Hardware) -> Room:
    """Return the memory of the machines."""
    return Room(device=hardware.gpu.memory, host=hardware.host_memory or USUAL_HOST, per_node=hardware.per_node)


def report_fit(paper: PaperRun, hardware: Hardware) -> dict[str, Any]:
    """Return the verdict on the run as it is, in bytes and tokens."""
    verdict = judge(paper, room_of(hardware))
    limit = getattr(paper.parts.config.model.options, "max_seq_len", None)
    return {
        "gpu": hardware.gpu.name,
        "gpu_memory": hardware.gpu.memory,
        "host_memory": hardware.host_memory or USUAL_HOST,
        "host_memory_given": hardware.host_memory is not None,
        "per_node": hardware.per_node,
        "kept_free": KEPT_FREE,
        "fits": verdict.fits,
        "activations_counted": all(stage["memory"]["activations"] is not None for stage in verdict.candidate.stages),
        **_needs(verdict.candidate),
        "fixes": [{"changes": dict(fix.changes), **_needs(fix.candidate)} for fix in verdict.fixes],
        "nodes": verdict.nodes,
        "longest_row": verdict.longest_row,
        "model_limit": limit,
    }


def _needs(candidate: Candidate) -> dict[str, int]:
    """Return the bytes that the plan counts on a rank's device, and what that needs there and in the host's memory."""
    host = round(candidate.host * (1 + KEPT_FREE))
    return {"memory": candidate.device, "needed": candidate.needed, "host_needed": host}


def report_layouts(paper: PaperRun, hardware: Hardware, steps: int) -> dict[str, Any]:
    """Return the fastest layouts that fit, with the time of a step, what it is spent on, and days for so many steps."""
    network = hardware.gpu.link if hardware.network is None else hardware.network  # on one node nobody asks
    cluster = Cluster(gpu=hardware.gpu, per_node=hardware.per_node, network=network)
    found = find_layouts(paper, room_of(hardware), cluster)
    return {
        "tried": found.tried,
        "accepted": found.accepted,
        "too_large": found.too_large,
        "matmul": paper.parts.config.train.matmul,
        "collects_answers": longest_answered(paper.data) is not None,
        "row_tokens": _row_tokens(paper),
        "fitted": hardware.gpu.architecture in CONSTANTS.products,
        "fitted_like": FITTED_LIKE,
        "small": sum(paper.counts.shape(1).layers) < SMALLEST,
        "fastest": [_layout(each, steps) for each in found.fastest],
    }


def _row_tokens(paper: PaperRun) -> dict[str, float]:
    """Return the tokens of a row that times are counted for, and those of a row on average.

    Packed rows are full, and how long answers will be nobody knows.
    """
    longest = count_row_tokens(paper.parts.config, paper.data)
    if paper.parts.config.data.batching == "packing" or longest_answered(paper.data):
        return {"counted": longest, "mean": longest}
    return {"counted": longest, "mean": float(paper.data.train.lengths.clip(max=longest).mean())}


def _layout(timed: TimedLayout, steps: int) -> dict[str, Any]:
    plan = timed.candidate.plan
    return {
        "changes": dict(timed.changes),
        "layout": plan.describe(),
        "step_seconds": timed.time.seconds,
        "tokens_per_second": timed.tokens_per_second,
        "tokens_per_second_per_gpu": timed.tokens_per_second / plan.world,
        "mfu": timed.mfu,
        **_needs(timed.candidate),
        "days": steps * timed.time.seconds / SECONDS_OF_A_DAY,
        "shares": timed.time.shares,
        "bound": timed.time.bound,
    }
