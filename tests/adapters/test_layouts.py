"""Every adapter on the layouts that it declares, all in one launch for each number of processes. A sample; -m soak is all."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from catalogue import components, constant_of, expect, further_options, host_of, modules, small_options
from layout_cases import (
    AGAIN,
    BITS,
    WHOLE,
    declared_layouts,
    further,
    one_process,
    over_bits,
    sample_layouts,
    two_processes,
)

from mt_conformance.layouts import SECTIONS, parallel_section, small_run
from mt_core import ConfigError
from mt_train.engine.plan import make_plan
from mt_train.plugins.resolve import resolve

WORKER = "adapters/conformance_worker.py"
TOLERANCE = 2e-6
"""Relative: the same sums in fp32, in another order."""
NAMES = list(modules())
GROUP = 8
"""Adapters whose full matrix one launch tries."""
Launch = Callable[..., dict[str, Any]]
Everything = Callable[[str, int], dict[str, Any]]


@pytest.fixture(scope="module")
def one(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return launch(WORKER, 1, tmp_path_factory.mktemp("one"), one_process(NAMES, full=False) | further(1, NAMES))


@pytest.fixture(scope="module")
def two(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return launch(WORKER, 2, tmp_path_factory.mktemp("two"), two_processes(NAMES, full=False) | further(2, NAMES))


@pytest.fixture(scope="module")
def everything(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> Everything:
    """All runs of an adapter's group on so many processes; a group is launched when the first of it is asked for."""

    @cache
    def of_group(names: tuple[str, ...], processes: int) -> dict[str, Any]:
        cases = (one_process if processes == 1 else two_processes)(list(names), full=True)
        return launch(WORKER, processes, tmp_path_factory.mktemp("all"), cases, timeout=1700)

    def of(name: str, processes: int) -> dict[str, Any]:
        start = NAMES.index(name) // GROUP * GROUP
        return of_group(tuple(NAMES[start : start + GROUP]), processes)

    return of


@pytest.fixture(autouse=True)
def _expect_failures(request: pytest.FixtureRequest) -> None:
    expect(request, request.node.callspec.params["name"])


def well(results: dict[str, Any], case: str) -> dict[str, Any]:
    """Its figures. Raises ``AssertionError`` with what it said where it failed."""
    assert "error" not in results[case], f"{case}:\n{results[case]['error']}"
    return results[case]


def far(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest relative difference of losses and of gradient norms."""
    pairs = [*zip(one["losses"], other["losses"], strict=True), *zip(one["norms"], other["norms"], strict=True)]
    return max(abs(a - b) / max(abs(a), 1e-12) for a, b in pairs)


def same_bits(whole: dict[str, Any], resumed: dict[str, Any]) -> None:
    """Losses, weights and every rank's optimizer state."""
    assert whole["losses"] == resumed["losses"]
    wrong = [name for name, value in whole["values"].items() if resumed["values"][name] != value]
    assert not wrong, f"other weights after the resume: {', '.join(wrong[:3])}"
    assert whole["state"] == resumed["state"], "the optimizer's state is another after the resume"


def assert_alike(name: str, reference: dict[str, Any], other: dict[str, Any]) -> None:
    """Within rounding, and copies of a weight on several stages are the same."""
    assert far(reference, other) < constant_of(name, "LAYOUTS_WITHIN", TOLERANCE)
    assert all(len(set(hashes)) == 1 for hashes in other["copies"].values())


@pytest.mark.parametrize("name", NAMES)
def test_it_learns_on_one_process_and_leaves_the_rest_of_the_base_alone(one: dict[str, Any], name: str) -> None:
    """In an engine. What nobody rewrites has the bits that it has under LoRA, which leaves all of the base alone."""
    result, lora = well(one, f"{name}/{WHOLE}"), well(one, f"lora/{WHOLE}")
    assert result["losses"][-1] < result["losses"][0] - 1e-4
    if components()[name].rewrites_base:
        return
    frozen = [key for key in lora["values"] if "lora_" not in key]
    changed = {key for key in frozen if result["values"][key] != lora["values"][key]}
    assert changed < set(frozen)
    trained = set(result["values"]) - set(frozen)
    assert not (changed and trained), f"it has parameters of its own, and changed {sorted(changed)[:3]} of the base"


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_run_equals_one_that_was_not_stopped_to_the_bit(one: dict[str, Any], name: str) -> None:
    """From a checkpoint that has only what is trained or rewritten."""
    same_bits(well(one, f"{name}/{WHOLE}"), well(one, f"{name}/{AGAIN}"))


@pytest.mark.parametrize(
    ("name", "layout"), [(name, layout) for name in NAMES for layout in sample_layouts(name, NAMES)]
)
def test_two_processes_train_as_one_does(one: dict[str, Any], two: dict[str, Any], name: str, layout: str) -> None:
    assert_alike(name, well(one, f"{name}/{WHOLE}"), well(two, f"{name}/{layout}"))


@pytest.mark.parametrize(("name", "title"), [(name, title) for title, (name, _) in further_options().items()])
def test_with_further_options_it_learns_resumes_and_two_processes_train_as_one(
    one: dict[str, Any], two: dict[str, Any], name: str, title: str
) -> None:
    whole = well(one, f"{title}/{WHOLE}")
    assert whole["losses"][-1] < whole["losses"][0] - 1e-4
    assert whole["values"] != well(one, f"{name}/{WHOLE}")["values"], "the options change something"
    same_bits(whole, well(one, f"{title}/{AGAIN}"))
    for layout in sample_layouts(name, NAMES):
        assert_alike(name, whole, well(two, f"{title}/{layout}"))


@pytest.mark.parametrize("name", NAMES)
def test_a_layout_that_is_not_declared_is_refused_on_paper(name: str) -> None:
    """Before any process starts, with the layouts that there are."""
    run = small_run(model={"name": "llama", "n_layers": 2}, adapter={"name": name, **small_options(name)})
    has = components()[name].layouts
    for layout in sorted(set(SECTIONS) - has):
        resolved = resolve({**run, "parallel": parallel_section(has, layout)}, host_of(modules()[name]))
        with pytest.raises(ConfigError, match=f"{name} (does not support {layout}|stands on experts)"):
            make_plan(resolved.config, world=2, device="cpu", offers=resolved.offers.values())


ALL = [(name, layout) for name in NAMES for layout in declared_layouts(name)]


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("name", "layout"), ALL)
def test_every_declared_layout_trains_as_one_process_does(everything: Everything, name: str, layout: str) -> None:
    one, two = everything(name, 1), everything(name, 2)
    reference = well(one, f"{name}/{WHOLE}")
    assert_alike(name, reference, well(two, f"{name}/{layout}"))
    assert_alike(name, reference, well(one, f"{name}/recompute"))
    if f"{name}/one {layout}" in one:
        assert_alike(name, reference, well(one, f"{name}/one {layout}"))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("name", "layout"), ALL)
def test_on_every_declared_layout_a_resumed_run_equals_one_that_was_not_stopped(
    everything: Everything, name: str, layout: str
) -> None:
    two = everything(name, 2)
    same_bits(well(two, f"{name}/{layout}"), well(two, f"{name}/{layout} {AGAIN}"))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("name", "layout"), [(name, layout) for name in NAMES for layout in over_bits(name)])
def test_over_four_bits_two_processes_train_as_one_does_and_resume(
    everything: Everything, name: str, layout: str
) -> None:
    one, two = everything(name, 1), everything(name, 2)
    assert_alike(name, well(one, f"{name}/{BITS}"), well(two, f"{name}/{BITS} {layout}"))
    same_bits(well(two, f"{name}/{BITS} {layout}"), well(two, f"{name}/{BITS} {layout} {AGAIN}"))
