"""Every projector, as the kit tests them."""

from __future__ import annotations

from typing import Any

import pytest

from mt_conformance import BaseProjectorConformance
from mt_plugin_multimodal import plugin

CASES: list[tuple[str, dict[str, Any]]] = [
    ("linear", {}),
    ("mlp", {"depth": 3, "bias": False}),
    ("pixel-shuffle", {}),
    ("average", {"factor": 2}),
    ("merger", {"norm": "layer"}),
    ("merger", {"norm": "layer", "levels": 2}),
    ("pooling", {"pool": "adaptive", "tokens": 3}),
    ("pooling", {"pool": "last"}),
    ("qformer", {"queries": 3, "dim": 16, "depth": 3, "n_heads": 4, "ffn_dim": 20}),
    ("resampler", {"queries": 3, "depth": 2, "n_heads": 4, "n_kv_heads": 2, "head_dim": 6, "ffn_dim": 20}),
]


def test_each_projector_is_here() -> None:
    assert {name for name, _ in CASES} == {each.name for each in plugin.mt_projectors()}


class TestProjectors(BaseProjectorConformance):
    plugin = plugin

    @pytest.fixture(autouse=True, params=CASES, ids=lambda case: case[0])
    def _each(self, request: pytest.FixtureRequest) -> None:
        self.name, self.options = request.param
