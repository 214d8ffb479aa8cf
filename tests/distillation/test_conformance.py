"""Objectives on rows keep what the kit asks; answers of the student have tests of their own (test_gkd.py, test_layouts.py)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mt_conformance import BaseCallbackConformance, BaseObjectiveConformance
from mt_plugin_distillation import plugin

OBJECTIVES: list[tuple[str, dict[str, Any]]] = [
    ("distill", {"divergence": "jsd", "beta": 0.3, "softmax_temperature": 2.0}),
    ("distill", {"divergence": "skew-kl", "alpha": 0.2, "weight": 1.0}),
    ("distill-pretrain", {}),
]


class TestObjectives(BaseObjectiveConformance):
    plugin, launches = plugin, False  # tests/distillation/test_layouts.py has every layout

    @pytest.fixture(autouse=True, params=OBJECTIVES, ids=str)
    def _each(self, request: pytest.FixtureRequest, teacher: Path) -> None:
        self.name, self.options = request.param
        self.teacher = teacher
        self.idle_options = ("teacher_family", "teacher_checkpoint", "teacher_dtype")  # of one teacher
        self.idle_options += () if "softmax_temperature" in self.options else ("squared_temperature",)

    def options_in(self, folder: Path) -> Mapping[str, Any]:
        return {**self.options, "teacher_path": str(self.teacher)}


class TestCheck(BaseCallbackConformance):
    plugin, name, launches = plugin, "teacher-check", False
