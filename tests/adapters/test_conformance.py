"""Every adapter that is built in or in plugins/adapters keeps what the kit asks; a new one is found, not listed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from catalogue import TINY, constant_of, expect, host_of, modules, small_options

from mt_conformance import BaseAdapterConformance
from mt_core.plugins.host import PluginHost


class TestAdapters(BaseAdapterConformance):
    launches = False
    # All adapters together, in one launch: test_layouts.py.
    test_every_declared_layout_trains_as_one_process_does = None
    test_a_resumed_run_equals_one_that_was_not_stopped = None
    # Some ten small runs for each adapter, minutes for all; tests of each variant vary its options.
    test_every_option_changes_something = None
    model = {"name": "llama", **TINY}
    quantizer = {"name": "nf4"}

    @pytest.fixture(autouse=True, params=modules())
    def _each(self, request: pytest.FixtureRequest) -> None:
        self.name, self.plugin, self.options = request.param, modules()[request.param], small_options(request.param)
        self.exact_within = constant_of(self.name, "EXACT_WITHIN", self.exact_within)
        expect(request, self.name)

    @pytest.fixture
    def mt_host(self, _each: None) -> PluginHost:
        return host_of(self.plugin)

    def world(self, host: PluginHost) -> PluginHost:
        return host
