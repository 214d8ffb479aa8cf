"""Verdicts and layouts on paper: what is printed is accepted by the real check, and holds what the dry run says of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from mt_core.errors import ConfigError
from mt_core.plugins.host import PluginHost
from mt_train.assemble.parts import Parts
from mt_train.assemble.run import RunOptions
from mt_train.planning.candidates import Candidate, Room, memory_bytes
from mt_train.planning.dry_run import PaperRun, dry_run
from mt_train.planning.fit import Verdict, judge
from mt_train.planning.gpus import find_gpu
from mt_train.planning.layouts import LayoutSearch, find_layouts, layout_changes, time_layout
from mt_train.planning.step_time import Cluster
from mt_train.plugins.resolve import resolve

SHAPE = {
    "max_seq_len": 65_536,
    "dim": 256,
    "n_layers": 6,
    "n_heads": 8,
    "n_kv_heads": 4,
    "ffn_dim": 688,
    "vocab_size": 4096,
}
MIB = 2**20
ROOMY = Room(device=2**40, host=2**40, per_node=4)
WORLD = 8


def paper_of(changes: Mapping[str, Any] | None = None, *, world: int = WORLD) -> PaperRun:
    """A run on paper on GPUs, with other keys where some are given."""
    raw: dict[str, Any] = {
        "model": {"name": "llama", **SHAPE},
        "data": {"batching": "packing"},
        "train": {"sequence_len": 512, "global_batch_size": 32, "micro_batch_size": 4, "steps": 100},
    }
    for key, value in (changes or {}).items():
        section, _, name = key.partition(".")
        raw[section] = {**raw.get(section, {}), name: value}
    parts = Parts.of(resolve(raw, host()))
    return dry_run(parts, RunOptions(output=None), world=world, device="cuda")


@cache
def host() -> Any:
    return PluginHost.discover()


@cache
def plain() -> PaperRun:
    return paper_of()


def held(paper: PaperRun) -> int:
    """Bytes of the fullest rank's device, as the dry run prints them."""
    return max(memory_bytes(stage["memory"], "device") for stage in paper.about()["stages"])


def cluster(gbit: float = 400, gpu: str = "h100-80g") -> Cluster:
    return Cluster(gpu=find_gpu(gpu), per_node=4, network=gbit / 8 * 1e9)


def room_for(share: float) -> Room:
    """A part of what the plain run needs."""
    return replace(ROOMY, device=int(held(plain()) * 1.1 * share))


@cache
def layouts() -> LayoutSearch:
    return find_layouts(plain(), ROOMY, cluster())


def test_five_layouts_are_found_the_fastest_first_among_less_than_two_thousand() -> None:
    found = layouts()
    times = [each.time.seconds for each in found.fastest]
    assert len(times) == 5
    assert times == sorted(times)
    assert 5 < found.accepted <= found.tried < 2000


@pytest.mark.parametrize("number", [0, 4])
def test_a_layout_is_accepted_as_a_run_of_its_own_and_holds_what_that_is_planned_to(number: int) -> None:
    each = layouts().fastest[number]
    again = paper_of(each.changes)
    assert again.plan == each.candidate.plan
    assert held(again) == each.candidate.device


def test_layouts_compute_the_same_rows_and_rates_follow_from_their_time() -> None:
    for each in layouts().fastest:
        assert each.candidate.plan.global_batch_size == 32
        assert each.tokens_per_second == pytest.approx(32 * 512 / each.time.seconds)
        assert 0 < each.mfu < 1


def test_layouts_that_differ_in_rows_at_a_time_alone_are_shown_once_where_time_is_the_same() -> None:
    for number, each in enumerate(layouts().fastest):
        for other in layouts().fastest[number + 1 :]:
            apart = {key for key in each.changes if each.changes[key] != other.changes[key]}
            assert apart != {"train.micro_batch_size"} or other.time.seconds > 1.01 * each.time.seconds


def test_layouts_that_do_not_fit_are_left_out() -> None:
    room = room_for(0.5)
    found = find_layouts(plain(), room, cluster())
    assert found.too_large > 0
    assert found.fastest
    assert all(each.candidate.needed <= room.device for each in found.fastest)


def test_where_nothing_fits_there_is_no_layout_and_no_fix() -> None:
    nothing = replace(ROOMY, device=1)
    assert find_layouts(plain(), nothing, cluster()).fastest == ()
    verdict = judge(plain(), nothing)
    assert (verdict.fits, verdict.fixes, verdict.longest_row, verdict.nodes) == (False, (), None, None)


def test_a_slow_network_changes_the_order_and_makes_nothing_faster() -> None:
    quick, slow = layouts().fastest[0], find_layouts(plain(), ROOMY, cluster(1)).fastest[0]
    assert slow.time.seconds > quick.time.seconds


def test_more_gpus_are_faster_for_the_same_rows_without_a_network() -> None:
    gpu = replace(find_gpu("h100-80g"), link=float("inf"))
    endless = Cluster(gpu=gpu, per_node=4, network=float("inf"))
    times = [
        find_layouts(paper_of({"train.micro_batch_size": 1}, world=world), ROOMY, endless).fastest[0].time.seconds
        for world in (1, 4, 16)
    ]
    assert times == sorted(times, reverse=True)


def test_experts_are_divided_where_the_model_has_fused_ones() -> None:
    raw = {
        "model": {
            "name": "gpt-oss", "dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "n_experts": 8, "top_k": 2,
            "vocab_size": 4096,
        },
        "data": {"batching": "packing"},
        "train": {"sequence_len": 128, "global_batch_size": 8, "micro_batch_size": 1, "steps": 10},
    }  # fmt: skip
    paper = dry_run(Parts.of(resolve(raw, host())), RunOptions(output=None), world=4, device="cuda")
    found = find_layouts(paper, ROOMY, cluster())
    assert {each.candidate.plan.expert for each in found.fastest} <= {1, 2, 4}
    assert any(changes["parallel.expert"] == 4 for changes in layout_changes(paper.parts.config, paper.plan))


def test_mfu_counts_no_gradients_of_frozen_weights(needs: Callable[[str], None]) -> None:
    """An adapter takes two thirds of the operations of full fine-tuning, attention and its own pairs apart."""
    needs("mt-plugin-adapters")
    found = find_layouts(
        paper_of({"adapter.name": "lora", "adapter.rank": 1, "train.sequence_len": 128}), ROOMY, cluster()
    )
    for each in found.fastest:
        model_flops = plain().counts.meta(1).model.flops_per_token(128)
        peak = find_gpu("h100-80g").peak("bf16") * WORLD
        assert each.mfu / (model_flops * each.tokens_per_second / peak) == pytest.approx(2 / 3, rel=0.05)


def test_optimizers_that_run_at_zero_0_alone_have_layouts_in_bf16(needs: Callable[[str], None]) -> None:
    """Optimizers of whole parameters. Of any other one ZeRO 0 is ZeRO 1 in 16 bits, and is not looked at twice."""
    needs("mt-plugin-optim")
    paper = paper_of({"optimizer.name": "adafactor"}, world=2)
    assert paper.plan.dtype == "bf16"
    found = find_layouts(paper, ROOMY, cluster())
    assert found.fastest
    assert {each.candidate.plan.zero_stage for each in found.fastest} == {0}
    assert all(changes["parallel.zero_stage"] for changes in layout_changes(plain().parts.config, plain().plan))


def test_offload_has_no_known_time() -> None:
    with pytest.raises(ConfigError, match="nothing is known of the time that offloading takes"):
        find_layouts(paper_of({"parallel.offload": "optimizer"}), ROOMY, cluster())


@cache
def verdict(share: float) -> Verdict:
    return judge(plain(), room_for(share))


def test_a_run_fits_exactly_down_to_what_it_needs() -> None:
    assert verdict(1.001).fits
    assert not verdict(0.99).fits


@pytest.mark.parametrize("share", [0.9, 0.5, 0.3])
def test_a_fix_really_fits_when_it_is_made(share: float) -> None:
    fixes = verdict(share).fixes
    assert fixes
    for fix in fixes:
        again = paper_of(fix.changes)
        assert held(again) * 1.1 <= room_for(share).device + 1
        assert again.plan.global_batch_size == 32


@pytest.mark.parametrize("form", ["selective", "full"])
def test_what_keeps_block_inputs_may_keep_less(form: str) -> None:
    changes = {"train.activation_checkpointing": form, "train.sequence_len": 4096}
    paper = paper_of(changes)
    verdict = judge(paper, replace(ROOMY, device=int(held(paper) * 1.09)))
    (fix,) = (each for each in verdict.fixes if "train.activation_checkpointing" in each.changes)
    assert held(paper_of({**changes, **fix.changes})) < held(paper)


def test_the_fewest_keys_are_proposed_and_shorter_rows_beside_them() -> None:
    singles = [tuple(fix.changes) for fix in verdict(0.9).fixes]
    assert all(len(keys) == 1 for keys in singles)
    assert ("train.micro_batch_size",) in singles
    assert ("train.sequence_len",) in singles
    deeper = {len(fix.changes) for fix in verdict(0.3).fixes}
    assert len(deeper) == 1


def test_a_fix_keeps_the_rows_of_a_step_that_nobody_gave() -> None:
    """The micro-batch times the ranks is what a step has by default."""
    changes = {"train.global_batch_size": None, "train.micro_batch_size": 8}
    paper = paper_of(changes)
    verdict = judge(paper, replace(ROOMY, device=int(held(paper) * 0.9)))
    fix = next(each for each in verdict.fixes if "train.micro_batch_size" in each.changes)
    assert fix.changes["train.global_batch_size"] == 64
    assert paper_of({**changes, **fix.changes}).plan.global_batch_size == 64


def test_host_memory_bounds_what_is_offloaded() -> None:
    paper = paper_of({"parallel.offload": "optimizer"})
    found = judge(paper, ROOMY)
    assert found.fits
    whole = int(found.candidate.host * ROOMY.per_node * 1.1)
    assert found.candidate.host > 0
    assert judge(paper, replace(ROOMY, host=whole + MIB)).fits
    assert not judge(paper, replace(ROOMY, host=whole - MIB)).fits


@pytest.mark.parametrize(
    "changes", [{}, {"train.activation_checkpointing": True}, {"parallel.sequence": 2, "train.global_batch_size": 16}]
)
def test_the_longest_row_fits_and_a_slightly_longer_one_does_not(changes: dict[str, Any]) -> None:
    room = replace(ROOMY, device=600 * MIB)
    longest = judge(paper_of(changes), room).longest_row
    assert longest is not None
    fitting, beyond = (
        held(paper_of({**changes, "train.sequence_len": length})) for length in (longest, longest + longest // 50 + 256)
    )
    assert fitting * 1.1 <= room.device < beyond * 1.1


def test_a_candidate_is_its_fullest_stage() -> None:
    def stage(size: int) -> dict[str, Any]:
        return {"memory": {"weights": {"device": size, "host": size // 2}, "activations": None}}

    candidate = Candidate(config=plain().parts.config, plan=plain().plan, row_tokens=1, stages=[stage(10), stage(40)])
    assert (candidate.device, candidate.needed, candidate.host) == (40, 44, 20)


def test_tiles_cost_another_forward_of_mlps_where_blocks_are_not_recomputed() -> None:
    def computing(changes: dict[str, Any]) -> float:
        paper = paper_of(changes)
        return time_layout(paper, paper.parts.config, paper.plan, cluster()).compute

    tiled, recomputed = {"train.mlp_tile_tokens": 256}, {"train.activation_checkpointing": True}
    shape = paper_of(tiled).counts.shape(1)
    assert shape.tiled == 6 * 3 * SHAPE["dim"] * SHAPE["ffn_dim"]
    ratio = computing(tiled) / computing({})
    assert 1.05 < ratio < 1 + shape.tiled / sum(shape.layers[1:]) / 3  # attention is not repeated
    assert computing(tiled | recomputed) == computing(recomputed)
    assert computing({"train.mlp_tile_tokens": 65_536}) == computing({})


def test_recompute_is_known_for_every_value_of_its_key() -> None:
    from typing import get_args

    from mt_train.config.sections import TrainConfig
    from mt_train.planning.layouts import RECOMPUTED

    of_bool, of_names = get_args(TrainConfig.model_fields["activation_checkpointing"].annotation)
    values = {False, True, *get_args(of_names)}
    assert of_bool is bool
    assert set(RECOMPUTED) == values, "say what share of the forward each value computes again"
