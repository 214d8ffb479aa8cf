"""What the time of a step on paper must obey, whatever its constants."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mt_core.errors import UsageError
from mt_train.planning.gpus import GPUS, find_gpu
from mt_train.planning.step_time import (
    Cluster,
    StepTime,
    Traffic,
    Work,
    exchange_bytes,
    expert_bytes,
    step_time,
    zero_bytes,
)

H100 = find_gpu("h100-80g")
NOTHING = Traffic(hidden=0.0, waited=0.0, ending=0.0, updated=0.0)
WORK = Work(
    products=1.5e10,
    attention=1e9,
    channels=32 * 4096,
    backward=2.0,
    recomputed=0.0,
    tokens=8192,
    rounds=4,
    peak=H100.bf16,
)


def zero_step(stage: int, *, ranks: int, network: float, rows: int = 512) -> StepTime:
    """A step of 512 rows in a layout of plain ranks with 8B parameters."""
    work = replace(WORK, rounds=rows // ranks)
    cluster = Cluster(gpu=H100, per_node=8, network=network)
    each, ending = zero_bytes(
        stage, ranks=ranks, numbers=8e9, trained=8e9, weight_bytes=2, gradient_bytes=4 if stage == 1 else 2
    )
    bandwidth = cluster.bandwidth(ranks)
    updated = 8e9 / (ranks if stage else 1)
    return step_time(
        work, Traffic(hidden=each / bandwidth, waited=0.0, ending=ending / bandwidth, updated=updated), H100
    )


@pytest.mark.parametrize("stage", range(4))
def test_more_gpus_never_take_longer_for_the_same_rows_where_networks_cost_nothing(stage: int) -> None:
    endless = replace(H100, link=float("inf"))
    times = []
    for ranks in (1, 2, 4, 8, 16, 64, 256, 512):
        work = replace(WORK, rounds=512 // ranks)
        cluster = Cluster(gpu=endless, per_node=8, network=float("inf"))
        each, ending = zero_bytes(stage, ranks=ranks, numbers=8e9, trained=8e9, weight_bytes=2, gradient_bytes=4)
        wire = cluster.bandwidth(ranks)
        traffic = Traffic(hidden=each / wire, waited=0.0, ending=ending / wire, updated=8e9 / (ranks if stage else 1))
        times.append(step_time(work, traffic, endless).seconds)
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("stage", range(4))
def test_a_slower_network_never_makes_a_step_faster(stage: int) -> None:
    times = [zero_step(stage, ranks=64, network=gbit / 8 * 1e9).seconds for gbit in (3200, 400, 100, 25, 10, 1)]
    assert times == sorted(times)
    assert times[-1] > times[0]


def test_a_step_is_what_it_is_spent_on_and_its_bound_is_the_most_of_it() -> None:
    time = zero_step(3, ranks=64, network=1e9)
    assert sum(time.shares.values()) == pytest.approx(1)
    assert time.bound == "network"
    assert zero_step(3, ranks=8, network=1e9).bound == "compute"


def test_a_pipeline_idles_as_often_as_1f1b_does() -> None:
    """p - 1 of m + p - 1 (https://arxiv.org/abs/2104.04473, section 2.2.1)."""
    for stages, rounds in ((4, 4), (8, 32)):
        time = step_time(replace(WORK, rounds=rounds), NOTHING, H100, stages=stages)
        assert time.shares["bubble"] == pytest.approx((stages - 1) / (rounds + stages - 1))


def test_recomputing_costs_a_third_more_of_computing() -> None:
    plain, again = (step_time(replace(WORK, recomputed=share), NOTHING, H100) for share in (0.0, 1.0))
    assert again.compute / plain.compute == pytest.approx(4 / 3)


def test_ranks_of_several_nodes_share_the_cards_of_each() -> None:
    cluster = Cluster(gpu=H100, per_node=8, network=12.5e9)
    assert cluster.bandwidth(8) == pytest.approx(0.8 * 450e9)
    assert cluster.bandwidth(16) == pytest.approx(0.8 * 8 * 12.5e9)
    assert cluster.pair_bandwidth(16) == pytest.approx(0.8 * 12.5e9)


def test_volumes_are_those_of_the_papers() -> None:
    """ZeRO 3 moves 3N numbers a step for N parameters and many ranks (https://arxiv.org/abs/1910.02054, section 7), and so does ZeRO 2,
    2N in the paper, since DeepSpeed all-reduces gradients (test_traffic.py); Ulysses 4 of each token and channel a layer, forward
    (https://arxiv.org/abs/2309.14509, section 3.2)."""
    many = 10**9
    for stage, numbers in ((0, 2), (2, 3), (3, 3)):
        each, ending = zero_bytes(stage, ranks=many, numbers=1.0, trained=1.0, weight_bytes=2, gradient_bytes=2)
        assert (each + ending) / 2 == pytest.approx(numbers)
    one = exchange_bytes(ranks=many, tokens=1, blocks=1, query_width=64, key_width=64, number_bytes=1, passes=1)
    assert one == pytest.approx(4 * 64)
    assert expert_bytes(ranks=2, tokens=1, layers=1, chosen=2, width=64, number_bytes=1, passes=1) == 2 * 64


def test_ranks_that_hold_the_same_experts_reach_one_another_through_their_own_cards() -> None:
    """On nodes of 8: divided by 8, each GPU's copy is on other nodes, behind its own card; divided by 2, a ring has the cards of 4."""
    cluster = Cluster(gpu=H100, per_node=8, network=1e9)
    node = cluster.copies_bandwidth(8, 2)
    assert node == cluster.bandwidth(8), "a node needs no network"
    assert cluster.copies_bandwidth(64, 8) == cluster.copies_bandwidth(64, 16) == cluster.pair_bandwidth(64)
    assert cluster.copies_bandwidth(64, 2) == 4 * cluster.pair_bandwidth(64)
    assert cluster.copies_bandwidth(64, 1) == cluster.bandwidth(64)


def test_one_rank_sends_nothing() -> None:
    assert zero_bytes(3, ranks=1, numbers=8e9, trained=8e9, weight_bytes=2, gradient_bytes=2) == (0, 0)


def test_every_gpu_says_where_its_figures_are_from() -> None:
    assert len({gpu.name for gpu in GPUS}) == len(GPUS)
    for gpu in GPUS:
        assert gpu.sources
        assert gpu.fp32 <= gpu.tf32 < gpu.bf16 < (gpu.fp8 or float("inf"))
        assert 20 < gpu.memory / 2**30 < 300


@pytest.mark.parametrize(
    ("name", "near"), [("h100", "h100-80g or h100-pcie-80g"), ("H200", "h200-141g"), ("a100-80gb", "a100-80g")]
)
def test_an_unknown_gpu_is_told_the_nearest_names(name: str, near: str) -> None:
    with pytest.raises(UsageError, match=f"Did you mean {near}"):
        find_gpu(name)


def test_masters_of_our_own_reduce_gradients_once_where_deepspeed_adds_them_up_everywhere() -> None:
    sizes = {"ranks": 4, "numbers": 8e9, "trained": 8e9, "weight_bytes": 2, "gradient_bytes": 4}
    _, theirs = zero_bytes(1, **sizes)
    _, own = zero_bytes(1, **sizes, reduced_once=True)
    assert (theirs, own) == (0.75 * 8e9 * (2 * 4 + 2), 0.75 * 8e9 * (4 + 2))
