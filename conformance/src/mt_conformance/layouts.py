"""A small run, and the same run on every layout that a component declares."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from mt_conformance import tiny
from mt_conformance.base import BasePluginConformance
from mt_conformance.launch import Case, Result
from mt_core.plugins.host import PluginHost

STEPS = 4
WHOLE = "one"
"""The case that others are compared with: one process, at the lowest ZeRO stage that is declared."""

SECTIONS: Mapping[str, Mapping[str, Any]] = {
    **{f"zero{stage}": {"zero_stage": stage} for stage in range(4)},
    "pipeline": {"pipeline": 2, "zero_stage": "auto"},
    "sequence": {"sequence": 2},
    "expert": {"expert": 2},
}
"""Layout → keys of the section ``parallel`` that ask for it, on two processes. A pipeline has a ZeRO stage of its own; offload
needs a GPU and is not tried, and expert ranks need a family with experts, whose kit tries them."""


def parallel_section(layouts: Collection[str], layout: str = "") -> dict[str, Any]:
    """The section of a layout, beside the lowest ZeRO stage of those that are declared; without a layout that of one process."""
    lowest = min((each for each in layouts if each.startswith("zero")), default="zero0")
    return {**SECTIONS[lowest], **SECTIONS.get(layout, {})}


def on_two(raw: Mapping[str, Any], layouts: Collection[str]) -> dict[str, Case]:
    """A run on two processes in each of the declared layouts that can be tried."""
    tried = sorted(set(layouts) & set(SECTIONS))
    return {each: Case(raw={**raw, "parallel": parallel_section(layouts, each)}, processes=2) for each in tried}


def small_run(**slots: Any) -> dict[str, Any]:
    """Four steps of the kit's tiny model on a few rows, saved after the second; ``slots`` and sections replace its own."""
    raw: dict[str, Any] = {
        "model": {"name": tiny.NAME},
        "data": {"eval": None, "read_rows": 6},
        "train": {"steps": STEPS, "sequence_len": 32, "global_batch_size": 8, "micro_batch_size": 2, "dtype": "fp32"},
        "checkpoint": {"every_steps": 2, "keep_last": 9},
        "parallel": {"zero_stage": 0},
    }
    return {**raw, **slots}


class LayoutConformance(BasePluginConformance):
    """Checks of kinds that take part in the arithmetic of a step: what they declare in ``layouts`` has to be true.

    ``launches = False`` leaves the launch out, where a suite of your own covers it.
    """

    launches: bool = True
    tolerance: float = 1e-5
    """How far losses and gradient norms may be from those of one process, as a share of each: another order of summation."""

    def run(self, host: PluginHost, folder: Path) -> dict[str, Any]:
        """The config of a small run with this component."""
        return small_run(**{self.kind: {"name": self.name, **self.values_in(host, folder)}})

    def layouts(self, host: PluginHost) -> list[str]:
        """The declared layouts that two processes on CPUs can try."""
        return sorted(self.component(host).layouts & set(SECTIONS) - {"expert"})

    def launch_cases(self, host: PluginHost, folder: Path) -> Mapping[str, Case]:
        if not self.launches or "cpu" not in self.component(host).devices:
            return {}
        raw, layouts = self.run(host, folder), self.layouts(host)
        whole = {**raw, "parallel": parallel_section(layouts)}
        return {WHOLE: Case(raw=whole, again_from=2), **on_two(raw, layouts)}

    @pytest.mark.mt_launch
    def test_every_declared_layout_trains_as_one_process_does(
        self, mt_host: PluginHost, mt_launched: Mapping[str, Result]
    ) -> None:
        """ZeRO 0 to 3, pipeline and sequence parallelism on two processes, as far as ``layouts`` declares them, equal one process."""
        self.require_launch(mt_launched)
        whole = no_error(mt_launched[WHOLE], "one process")
        for layout in self.layouts(mt_host):
            result = no_error(mt_launched[layout], f"two processes with {layout}")
            for name in ("loss", "grad_norm"):
                one, two = whole.figures(name), result.figures(name)
                apart = [step for step, pair in enumerate(zip(one, two, strict=True), 1) if not self.is_close(*pair)]
                assert not apart, (
                    f"with {layout}, {name} of step {apart[0]} is {two[apart[0] - 1]!r}, and {one[apart[0] - 1]!r} on one"
                    f" process (allowed: {self.tolerance:g} of it). {self.name!r} declares layouts={self.layouts(mt_host)}:"
                    f" mend it, or take {layout} out of its `layouts`"
                )

    @pytest.mark.mt_launch
    def test_a_resumed_run_equals_one_that_was_not_stopped(self, mt_launched: Mapping[str, Result]) -> None:
        """A run resumed from a checkpoint in the middle equals an uninterrupted one bit for bit."""
        self.require_launch(mt_launched)
        result = no_error(mt_launched[WHOLE], "one process")
        same_after_resume(result, self.name)

    def require_launch(self, results: Mapping[str, Result]) -> None:
        """Skip where there was none."""
        if not results:
            pytest.skip("no launch: launches = False, or the component runs on no CPU")

    def is_close(self, one: float, two: float) -> bool:
        """Tell whether two are within ``tolerance``; two that are no numbers are not."""
        return math.isclose(one, two, rel_tol=self.tolerance)


def no_error(result: Result, what: str) -> Result:
    """The result. Raises ``AssertionError`` with what the first rank said that failed."""
    for rank, error in enumerate(result.errors):
        assert not error, f"a small run on {what} failed (rank {rank}):\n{error}"
    return result


def same_after_resume(result: Result, name: str) -> None:
    """Raises ``AssertionError`` for the first figure that differs after the resume."""
    for before, after in zip(result.records, result.again, strict=True):
        for figure in ("loss", "grad_norm", "lr"):
            assert before[figure] == after[figure], (
                f"resumed from the checkpoint of step 2, step {after['step']} has {figure} {after[figure]!r}, and"
                f" {before[figure]!r} without the stop; they must be equal. Everything that {name!r} keeps between steps has"
                " to be in its state (tensors and numbers in an optimizer's state, state_dict() of a callback)"
            )
