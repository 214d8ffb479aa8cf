"""Every optimizer and schedule keeps what the kit asks; their layouts are in test_layouts.py."""

from __future__ import annotations

import pytest

from mt_conformance import BaseOptimizerConformance, BaseScheduleConformance
from mt_plugin_optim import plugin

SMALL = {
    **{name: {"rank": 4, "update_steps": 2} for name in ("galore", "galore-adafactor", "apollo")},
    "soap": {"update_steps": 2},
    "badam": {"switch_steps": 1},
    "lisa": {"switch_steps": 1, "active": 1},
    "relora": {"reset_steps": 15, "restart_steps": 3},
    "cosine-restarts": {"cycles": 3},
}
"""Options with which few steps show what is special."""

IDLE = {
    "adafactor": ("eps",),  # a floor for weights that are nearly 0
    "adalomo": ("least",),
    "galore-8bit": (
        "rank",
        "update_steps",
        "scale",
        "min_8bit_size",
    ),  # the kit's matrices are smaller than its default rank
    "galore-per-layer": ("rank", "update_steps", "scale"),
    "adamw-8bit": ("min_8bit_size",),  # larger than the kit's matrices
    "soap": ("max_side",),
}
"""Options that change nothing in ten steps of small matrices."""


class TestOptimizers(BaseOptimizerConformance):
    plugin, launches = plugin, False

    @pytest.fixture(autouse=True, params=[each.name for each in plugin.mt_optimizers() if "cpu" in each.devices])
    def _each(self, request: pytest.FixtureRequest) -> None:
        if request.param.startswith("torchao"):
            pytest.importorskip("torchao")
        if request.param.endswith("-8bit"):
            pytest.importorskip("bitsandbytes")
        self.name, self.options = request.param, SMALL.get(request.param, {})
        self.idle_options = IDLE.get(request.param, ())


class TestSchedules(BaseScheduleConformance):
    plugin = plugin

    @pytest.fixture(autouse=True, params=[each.name for each in plugin.mt_schedules()])
    def _each(self, request: pytest.FixtureRequest) -> None:
        self.name, self.options = request.param, SMALL.get(request.param, {})
