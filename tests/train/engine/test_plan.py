"""Layouts are settled, or refused with all their faults, before anything is built."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mt_core.errors import ConfigError
from mt_core.plugins.host import PluginHost
from mt_train.engine.plan import Plan, make_plan
from mt_train.plugins.resolve import resolve


def plan_of(world: int, parallel: dict[str, Any], **train: Any) -> Plan:
    raw = {"model": {"name": "llama"}, "parallel": parallel, "train": {"micro_batch_size": 2, **train}}
    resolved = resolve(raw, PluginHost.discover())
    return make_plan(resolved.config, world=world, device="cpu", offers=resolved.offers.values())


@pytest.mark.parametrize(
    ("world", "parallel", "ranks", "said"),
    [
        (2, {"pipeline": 2}, [0, 0], "2 stages × 1 rank × 2 rows"),
        (4, {"pipeline": 2}, [0, 1, 0, 1], "2 stages × 2 ranks × 2 rows"),
        (4, {"pipeline": 2, "sequence": 2}, [0, 0, 0, 0], "2 stages × 1 × 2 ranks that share a row × 2 rows"),
        (8, {"pipeline": 2, "sequence": 2}, [0, 0, 1, 1, 0, 0, 1, 1], "2 stages × 2 × 2 ranks that share a row"),
        (4, {"sequence": 2}, [0, 0, 1, 1], "2 × 2 ranks that share a row"),
        (3, {}, [0, 1, 2], "3 ranks × 2 rows"),
    ],
)
def test_every_stage_has_the_same_rows(world: int, parallel: dict[str, Any], ranks: list[int], said: str) -> None:
    plan = plan_of(world, parallel)
    assert [plan.data_rank(rank) for rank in range(world)] == ranks
    assert plan.data_ranks == max(ranks) + 1
    assert plan.describe().startswith(said)


def test_a_pipeline_runs_zero_1() -> None:
    plan = plan_of(2, {"pipeline": 2})
    assert plan.zero_stage == 1
    assert plan.layouts == {"zero1", "pipeline"}


@pytest.mark.parametrize(
    ("world", "parallel", "train", "says"),
    [
        (1, {"pipeline": 2}, {}, ["1 rank does not divide into 2 stages"]),
        (3, {"pipeline": 2}, {}, ["3 ranks do not divide into 2 stages", "one of 1, 3"]),
        (8, {"pipeline": 8}, {}, ["the model has 7 layers", "Set --parallel.pipeline 7 or less"]),
        (2, {"pipeline": 2, "zero_stage": 0}, {}, ["0 does not go with a pipeline", "Set 1, or leave it auto"]),
        (2, {"pipeline": 2, "zero_stage": 2}, {}, ["2 does not go with a pipeline"]),
        (2, {"pipeline": 2, "zero_stage": 3}, {}, ["3 does not go with a pipeline"]),
        (2, {"pipeline": 2, "offload": "optimizer"}, {}, ["parallel.offload", "Set --parallel.offload none"]),
        (2, {"pipeline": 2, "offload": "parameters"}, {}, ["parallel.offload"]),
        (2, {"pipeline": 2}, {"compile": True}, ["train.compile", "Set --train.compile false"]),
        (2, {"pipeline": 2}, {"dtype": "fp16"}, ["fp16 does not work in a pipeline yet"]),
        (4, {"pipeline": 2, "sequence": 4}, {}, ["2 ranks and 4 heads do not divide by 4"]),
        (4, {"pipeline": 2}, {"global_batch_size": 6}, ["6 rows do not divide into 2 ranks × 2 rows"]),
        (3, {"pipeline": 2, "zero_stage": 3}, {"compile": True}, ["3 ranks", "ZeRO 1", "train.compile"]),
    ],
)
def test_a_layout_that_cannot_be_is_refused_with_what_to_do(
    world: int, parallel: dict[str, Any], train: dict[str, Any], says: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(world, parallel, **train)
    for text in says:
        assert text in str(caught.value)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_an_optimizer_of_whole_parameters_is_refused_with_one_fault(stage: int) -> None:
    raw = {"model": {"name": "llama"}, "parallel": {"zero_stage": stage}}
    resolved = resolve(raw, PluginHost.discover())
    offer = resolved.offers["optimizer"]
    whole = replace(offer.component, name="whole", form="whole_parameter", layouts=frozenset({"zero0"}))
    offers = [*(each for each in resolved.offers.values() if each is not offer), replace(offer, component=whole)]
    with pytest.raises(ConfigError) as caught:
        make_plan(resolved.config, world=2, device="cpu", offers=offers)
    assert [fault.key for fault in caught.value.faults] == ["optimizer"]
    assert f"whole needs whole parameters, and ZeRO {stage} shows it flat pieces" in str(caught.value)
    assert "Set --parallel.zero-stage 0" in str(caught.value)


def test_a_layout_that_the_model_cannot_do_with_its_config_is_refused_with_the_reason() -> None:
    """And only with that config: what the tests of a component cover is more."""
    for depth, refused in ((2, True), (3, False)):
        raw = {
            "model": {"name": "llama", "n_layers": depth},
            "parallel": {"pipeline": 2},
            "train": {"micro_batch_size": 2},
        }
        resolved = resolve(raw, PluginHost.discover())
        offer = resolved.offers["model"]
        limits = lambda config: {"pipeline": "two blocks are one"} if config.n_layers == 2 else {}  # noqa: E731
        offers = [replace(offer, component=replace(offer.component, limits=limits))]
        if not refused:
            assert make_plan(resolved.config, world=2, device="cpu", offers=offers).pipeline == 2
            continue
        with pytest.raises(ConfigError, match=f"{offer.component.name} cannot do pipeline: two blocks are one."):
            make_plan(resolved.config, world=2, device="cpu", offers=offers)
