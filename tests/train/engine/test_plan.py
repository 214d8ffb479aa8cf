"""Layouts are settled, or refused with all their faults, before anything is built."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from mt_core import MtConfig
from mt_core.config.base import ANY
from mt_core.errors import ConfigError, Fault
from mt_core.plugins.host import Offer, PluginHost
from mt_train.engine.plan import Plan, layout_faults, make_plan
from mt_train.plugins.resolve import Resolved, resolve


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


@pytest.mark.parametrize(
    ("stage", "dtype", "where"),
    [
        (3, "fp32", "at ZeRO 3"),
        (0, "fp32", "at ZeRO 0"),
        (1, "bf16", "in bf16 at ZeRO 1"),
        (1, "fp32", ""),
        (2, "bf16", ""),
    ],
)
def test_a_reduction_that_deepspeed_does_not_read_is_said(stage: int, dtype: str, where: str) -> None:
    asked = {"zero_optimization": {"use_multi_rank_bucket_allreduce": False}}
    said = plan_of(2, {"zero_stage": stage, "deepspeed": asked}, dtype=dtype).notices
    assert [f"use_multi_rank_bucket_allreduce is of no use {where};" in each for each in said] == [True] * bool(where)
    assert not plan_of(2, {"zero_stage": stage}, dtype=dtype).notices


@pytest.mark.parametrize(
    ("parallel", "dtype", "own"),
    [
        ({}, "bf16", True),
        ({"zero_stage": 0}, "bf16", True),
        ({"sequence": 2}, "bf16", True),
        ({}, "fp32", False),
        ({"zero_stage": 2}, "bf16", False),
        ({"masters": "deepspeed"}, "bf16", False),
        ({"offload": "optimizer"}, "bf16", False),
        ({"pipeline": 2}, "bf16", False),
        ({"deepspeed": {"zero_optimization": {"reduce_bucket_size": 500}}}, "bf16", False),
    ],
)
def test_masters_of_bf16_at_zero_1_are_our_own_where_nothing_asks_for_deepspeeds(
    parallel: dict[str, Any], dtype: str, own: bool
) -> None:
    plan = plan_of(2, parallel, dtype=dtype)
    assert plan.own_masters == own == ("own masters" in plan.describe())


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
        (2, {"pipeline": 2}, {"dtype": "fp16"}, ["fp16 does not work in a pipeline yet"]),
        (4, {"pipeline": 2, "sequence": 4}, {}, ["2 ranks and 4 heads do not divide by 4"]),
        (4, {"pipeline": 2}, {"global_batch_size": 6}, ["6 rows do not divide into 2 ranks × 2 rows"]),
        (3, {"pipeline": 2, "zero_stage": 3}, {"dtype": "fp16"}, ["3 ranks", "ZeRO 1", "train.dtype"]),
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


def whole_plan(world: int, parallel: dict[str, Any], dtype: str, name: str = "lamb") -> Plan:
    """The plan of a run whose optimizer works at ZeRO 0 alone."""
    raw = {"model": {"name": "llama"}, "optimizer": name, "parallel": parallel, "train": {"dtype": dtype}}
    resolved = resolve(raw, PluginHost.discover())
    return make_plan(resolved.config, world=world, device="cpu", offers=resolved.offers.values())


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("stage", ["auto", 0])
def test_an_optimizer_of_whole_parameters_runs_at_zero_0_in_both_precisions(world: int, dtype: str, stage: Any) -> None:
    plan = whole_plan(world, {"zero_stage": stage}, dtype)
    assert (plan.zero_stage, plan.own_masters) == (0, dtype == "bf16")
    assert plan.trains_weights == (dtype == "fp32")
    assert not plan.notices


@pytest.mark.parametrize(
    ("name", "parallel", "dtype", "says"),
    [
        ("lamb", {}, "fp16", "Set --train.dtype bf16"),
        ("lamb", {"masters": "deepspeed"}, "bf16", "pieces. In bf16 leave out --parallel.masters deepspeed"),
        ("lamb", {"masters": "deepspeed"}, "bf16", "Nearest that works: --parallel.masters auto"),
        ("lamb", {"masters": "deepspeed", "zero_stage": 0}, "bf16", "Nearest that works: --parallel.masters auto"),
        ("lamb", {"offload": "optimizer"}, "fp32", "lamb needs whole parameters, and ZeRO 1 shows it flat pieces"),
        ("lomo", {}, "bf16", "train.dtype: lomo changes each weight as its gradient arrives, and bf16 keeps copies"),
    ],
)
def test_what_keeps_an_optimizer_from_whole_parameters_is_refused(
    name: str, parallel: dict[str, Any], dtype: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        whole_plan(1, parallel, dtype, name)


def mixture_offers(resolved: Resolved, **changes: dict[str, Any]) -> list[Offer]:
    """The offers of a run whose model has experts that ranks may divide; ``changes`` are those of components, by kind."""
    changes = {"train_model": {"layouts": ANY | {"expert"}}, **changes}
    return [
        replace(offer, component=replace(offer.component, **changes.get(offer.kind, {})))
        for offer in resolved.offers.values()
    ]


def refuse(world: int, raw: dict[str, Any], **changes: dict[str, Any]) -> list[Fault]:
    """The faults of a mixture's run."""
    resolved = resolve({"model": {"name": "llama"}, "train": {"micro_batch_size": 2}, **raw}, PluginHost.discover())
    with pytest.raises(ConfigError) as caught:
        make_plan(resolved.config, world=world, device="cpu", offers=mixture_offers(resolved, **changes))
    return list(caught.value.faults)


def test_ranks_that_divide_experts_have_rows_of_their_own() -> None:
    resolved = resolve({"model": {"name": "llama"}, "parallel": {"expert": 2, "sequence": 2}}, PluginHost.discover())
    plan = make_plan(resolved.config, world=8, device="cpu", offers=mixture_offers(resolved))
    assert (plan.data_ranks, plan.sharing_ranks, plan.zero_stage) == (4, 8, 1)
    assert plan.layouts == {"zero1", "sequence", "expert"}
    assert plan.describe().endswith("ZeRO 1, fp32, experts divided among 2 ranks")
    assert not plan.forward_alone


@pytest.mark.parametrize(
    ("world", "raw", "says"),
    [
        (
            3,
            {},
            [
                "parallel.expert: 3 ranks do not divide by 2.",
                "Set --parallel.expert to one of 1, 3, or start 2 processes",
            ],
        ),
        (1, {}, ["parallel.expert: 1 rank does not divide by 2."]),
        (
            4,
            {"parallel": {"expert": 2, "pipeline": 2}},
            ["parallel.pipeline: a pipeline does not work with expert ranks yet"],
        ),
        (
            2,
            {"parallel": {"expert": 2, "offload": "optimizer"}},
            ["parallel.offload: optimizer does not work with expert ranks"],
        ),
        (
            2,
            {"train": {"micro_batch_size": "auto", "global_batch_size": 8}},
            ["train.micro-batch-size: auto does not work"],
        ),
        (2, {"adapter": "lora"}, ["lora stands on experts that are modules of their own", "train with --adapter full"]),
        (
            2,
            {"adapter": "lora", "quantizer": "nf4"},
            ["nf4 keeps all experts on each rank", "train with --quantizer none"],
        ),
        (
            2,
            {"optimizer": "adafactor", "parallel": {"expert": 2, "zero_stage": 0}},
            ["adafactor needs whole parameters", "adamw"],
        ),
        (
            2,
            {"optimizer": "muon", "parallel": {"expert": 2, "zero_stage": 0}},
            ["muon needs whole gradients", "Set 1, 2 or 3"],
        ),
        (2, {"optimizer": "lomo", "parallel": {"expert": 2, "zero_stage": 0}}, ["lomo needs whole parameters"]),
    ],
)
def test_what_does_not_go_with_expert_ranks_is_refused_with_what_does(
    world: int, raw: dict[str, Any], says: list[str]
) -> None:
    said = "\n".join(map(str, refuse(world, {"parallel": {"expert": 2}, **raw})))
    assert all(text in said for text in says), said


def test_a_model_without_experts_and_one_whose_experts_do_not_divide_are_refused() -> None:
    class Config(MtConfig):
        n_experts: int | None = 6

    assert "llama has no experts that ranks could divide" in str(
        refuse(2, {"parallel": {"expert": 2}}, train_model={"layouts": ANY})[0]
    )
    resolved = resolve({"model": {"name": "llama"}, "parallel": {"expert": 4}}, PluginHost.discover())
    for experts, says in ((6, "6 experts do not divide among 4 ranks"), (None, "no layer of experts to divide")):
        model = resolved.config.model.model_copy(update={"options": Config(n_experts=experts)})
        config = resolved.config.model_copy(update={"model": model})
        faults = layout_faults(config, 8, ("cpu",), mixture_offers(resolved))
        assert [fault.key for fault in faults] == ["parallel.expert"]
        assert says in str(faults[0])
        assert experts is None or "Set --parallel.expert to one of 2." in str(faults[0])


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


@pytest.mark.parametrize(
    ("kernel", "device", "dtype", "refused"),
    [
        ("efficient", "cpu", "fp32", True),
        ("efficient", "cuda", "fp32", False),
        ("flash", "cuda", "fp32", True),
        ("flash", "cuda", "bf16", False),
        ("flash", "cpu", "fp32", False),
        ("math", "cpu", "fp32", False),
    ],
)
def test_a_kernel_of_attention_that_the_device_has_not_in_this_precision_is_refused(
    kernel: str, device: str, dtype: str, refused: bool
) -> None:
    raw = {"model": {"name": "llama"}, "train": {"attention": kernel, "dtype": dtype}}
    resolved = resolve(raw, PluginHost.discover())
    faults = layout_faults(resolved.config, 1, [device], [*resolved.offers.values()])
    assert [fault.key for fault in faults] == (["train.attention"] if refused else [])
