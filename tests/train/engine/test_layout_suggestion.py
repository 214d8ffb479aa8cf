"""Whatever layout is refused, what is suggested instead is valid and changes as few keys as can be."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any, get_args

import pytest

from mt_core.components import Component
from mt_core.errors import ConfigError
from mt_core.plugins.host import PluginHost
from mt_train.config.run import RunConfig
from mt_train.config.sections import ParallelConfig, TrainConfig
from mt_train.engine.layout_suggestion import KEYS, Suggestion, nearest_layout, nearest_world, with_changes
from mt_train.engine.plan import check_layout, layout_faults, make_plan
from mt_train.plugins.resolve import Resolved, resolve

HEADS = ((4, 2, 1), (6, 3, 3))
"""Query heads, key/value heads, blocks."""


@pytest.fixture(scope="module")
def bases() -> list[Resolved]:
    host = PluginHost.discover()
    return [
        resolve({"model": {"name": "llama", "dim": 48, "n_heads": n, "n_kv_heads": k, "n_layers": blocks}}, host)
        for n, k, blocks in HEADS
    ]


def layout(base: Resolved, **values: Any) -> RunConfig:
    return with_changes(
        base.config, {("train." if k in TrainConfig.model_fields else "parallel.") + k: v for k, v in values.items()}
    )


def works(base: Resolved, config: RunConfig, world: int, device: str = "cpu") -> bool:
    return not layout_faults(config, world, (device,), tuple(base.offers.values()))


def suggest(base: Resolved, config: RunConfig, world: int, device: str = "cpu") -> dict[str, Any] | None:
    return nearest_layout(config, world, lambda other, ranks: works(base, other, ranks, device))


GRID = {
    "pipeline": (1, 2, 3, 8),
    "sequence": (1, 2, 3),
    "expert": (1, 2, 3),
    "zero_stage": ("auto", 0, 1, 2, 3),
    "offload": ("none", "optimizer", "parameters"),
    "dtype": ("auto", "fp16"),
    "compile": (False, True),
    "batch": ((2, None), (2, 12), (3, 8)),
}


def grid() -> list[dict[str, Any]]:
    cases = [dict(zip(GRID, values, strict=True)) for values in product(*GRID.values())]
    return [
        {
            **{key: value for key, value in case.items() if key != "batch"},
            "micro_batch_size": size,
            "global_batch_size": total,
        }
        for case in cases
        for size, total in [case["batch"]]
    ]


def test_every_layout_of_the_grid_is_valid_or_gets_a_suggestion_that_is(bases: list[Resolved]) -> None:
    """Every 797th of all combinations, which meets each value with each other one; all of them would take minutes."""
    cases = [(base, world, case) for base in bases for world in range(1, 9) for case in grid()][::797]
    refused = 0
    for base, world, case in cases:
        config = layout(base, **case)
        if works(base, config, world):
            continue
        refused += 1
        changes = suggest(base, config, world)
        assert changes, (world, case)
        assert works(base, with_changes(config, changes), world), (world, case, changes)
        current = {key: getattr(getattr(config, key.split(".")[0]), key.split(".")[1]) for key in changes}
        assert all(current[key] != value for key, value in changes.items()), (world, case, changes)
    assert 0.3 < refused / len(cases) < 1


def fewest(base: Resolved, config: RunConfig, world: int) -> int:
    """The least number of changed keys over all values that can matter, without looking for near ones."""
    choices = {
        "train.compile": (False, True),
        "parallel.zero_stage": get_args(ParallelConfig.model_fields["zero_stage"].annotation),
        "parallel.masters": ("auto",),  # DeepSpeed's mend nothing
        "parallel.offload": get_args(ParallelConfig.model_fields["offload"].annotation),
        "parallel.sequence": range(1, world + 1),
        "parallel.expert": range(1, world + 1),
        "parallel.pipeline": range(1, world + 1),
        "train.micro_batch_size": range(1, 13),
        "train.global_batch_size": range(1, 25),
        "train.dtype": get_args(TrainConfig.model_fields["dtype"].annotation),
    }
    assert set(choices) == set(KEYS)
    for count in range(1, 4):
        for keys in combinations(KEYS, count):
            for values in product(*(choices[key] for key in keys)):
                if works(base, with_changes(config, dict(zip(keys, values, strict=True))), world):
                    return count
    raise AssertionError("more than three changes")


@pytest.mark.parametrize(
    ("world", "case"),
    [
        (3, {"pipeline": 2}),
        (3, {"pipeline": 2, "zero_stage": 3, "compile": True}),
        (4, {"pipeline": 2, "zero_stage": 3}),
        (4, {"pipeline": 4, "sequence": 2, "offload": "parameters"}),
        (4, {"sequence": 3, "micro_batch_size": 3, "global_batch_size": 8}),
        (2, {"zero_stage": 0, "offload": "optimizer", "dtype": "fp16"}),
        (2, {"zero_stage": 1, "offload": "parameters", "micro_batch_size": 3, "global_batch_size": 8}),
        (4, {"pipeline": 2, "dtype": "fp16", "compile": True}),
        (8, {"pipeline": 8, "micro_batch_size": 3, "global_batch_size": 8}),
        (5, {"micro_batch_size": 2, "global_batch_size": 12}),
        (6, {"sequence": 4, "pipeline": 2}),
        (4, {"expert": 2, "pipeline": 2}),
        (3, {"expert": 2, "offload": "optimizer", "micro_batch_size": 2, "global_batch_size": 6}),
    ],
)
def test_no_fewer_changes_would_do(bases: list[Resolved], world: int, case: dict[str, Any]) -> None:
    for base in bases:
        config = layout(base, **case)
        if not works(base, config, world):
            changes = suggest(base, config, world)
            assert changes is not None
            assert len(changes) == fewest(base, config, world), changes


@pytest.mark.parametrize(
    ("world", "case", "expected"),
    [
        (4, {"pipeline": 4, "zero_stage": 2}, {"parallel.zero_stage": "auto"}),
        (3, {"pipeline": 2, "zero_stage": 3, "compile": True}, {"parallel.pipeline": 1}),
        (4, {"micro_batch_size": 2, "global_batch_size": 10}, {"train.global_batch_size": 8}),
        (8, {"sequence": 8}, {"parallel.sequence": 4}),
    ],
)
def test_of_equally_many_changes_the_smallest_is_taken(
    bases: list[Resolved], world: int, case: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert suggest(bases[0], layout(bases[0], **case), world) == expected


def test_the_nearest_number_of_processes_is_named(bases: list[Resolved]) -> None:
    config = layout(bases[0], pipeline=2, sequence=2)
    assert nearest_world(config, 1, lambda other, ranks: works(bases[0], other, ranks)) == 4
    assert nearest_world(config, 7, lambda other, ranks: works(bases[0], other, ranks)) == 8
    said = str(Suggestion(changes={"train.compile": False, "parallel.zero_stage": 1}, ranks=4))
    assert said == "--train.compile false --parallel.zero-stage 1, or 4 processes with all keys as they are"


def test_the_error_ends_with_the_suggestion(bases: list[Resolved]) -> None:
    config = layout(bases[0], pipeline=2)
    with pytest.raises(ConfigError, match=r"\nNearest that works: --parallel.pipeline 3, or 4 processes [a-z ]+$"):
        make_plan(config, world=3, device="cpu", offers=bases[0].offers.values())


def test_nothing_is_suggested_where_nothing_helps(bases: list[Resolved]) -> None:
    config = layout(bases[0])
    with pytest.raises(ConfigError) as caught:
        make_plan(config, world=2, device="abacus", offers=bases[0].offers.values())
    assert "Nearest" not in str(caught.value)


def test_a_component_that_lacks_a_layout_is_reckoned_with(bases: list[Resolved]) -> None:
    base = bases[0]
    narrow = Component(name="narrow", summary="zero0 only", layouts=frozenset({"zero0"}))
    offer = type(base.offers["adapter"])(**{**vars(base.offers["adapter"]), "component": narrow})
    only = Resolved(base.config, {**base.offers, "adapter": offer}, None, None, {})
    assert suggest(only, layout(only), 2) == {"parallel.zero_stage": 0}


def test_what_fails_on_every_device_is_known_without_one(bases: list[Resolved]) -> None:
    base = bases[0]
    check_layout(layout(base, dtype="fp16"), world=2, offers=base.offers.values())
    with pytest.raises(ConfigError, match="2 ranks do not divide into 3 stages"):
        check_layout(layout(base, pipeline=3), world=2, offers=base.offers.values())


def test_a_thousand_ranks_are_searched_in_seconds(bases: list[Resolved]) -> None:
    """No bound on time, which a busy machine would break: on how often the validator is asked."""
    asked = []
    config = layout(
        bases[0], pipeline=3, sequence=7, zero_stage=2, offload="parameters", dtype="fp16", global_batch_size=777
    )

    def counted(other: RunConfig, ranks: int) -> bool:
        asked.append(ranks)
        return works(bases[0], other, ranks)

    assert nearest_layout(config, 1000, counted)
    assert len(asked) < 30_000
