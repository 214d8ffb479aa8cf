"""Every callback and printer keeps what the kit asks; runs that are stopped and resumed with each are in test_resume.py."""

from __future__ import annotations

import pytest

from mt_conformance import BaseCallbackConformance, BaseTaskPrintConformance
from mt_plugin_callbacks import plugin

OPTIONS = {
    "early-stopping": {"patience": 3},
    "upload": {"url": "memory://elsewhere"},
    "spike-rollback": {"every_steps": 2},
}


class TestCallbacks(BaseCallbackConformance):
    plugin, launches = plugin, False

    @pytest.fixture(autouse=True, params=[each.name for each in plugin.mt_callbacks()])
    def _each(self, request: pytest.FixtureRequest) -> None:
        self.name, self.options = request.param, OPTIONS.get(request.param, {})


class TestPerplexity(BaseTaskPrintConformance):
    plugin, name = plugin, "perplexity"


class TestClassification(BaseTaskPrintConformance):
    plugin, name = plugin, "classification"
    figures = tuple(
        f"{split}{name}"
        for split in ("", "eval_")
        for name in ("true_positive", "false_positive", "false_negative", "true_negative")
    )
