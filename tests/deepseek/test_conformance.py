"""Both generations keep what the kit asks of every family; their layouts are in tests/families."""

from __future__ import annotations

from mt_conformance import BaseModelConformance
from mt_plugin_deepseek import plugin

SMALL = {"dim": 32, "n_layers": 2, "n_heads": 2, "n_experts": 4, "expert_dim": 32, "ffn_dim": 64}


class TestV2(BaseModelConformance):
    plugin, name, launches, variant, options = plugin, "deepseek", False, "v2-tiny", SMALL


class TestV3(BaseModelConformance):
    plugin, name, launches = plugin, "deepseek", False
    options = {**SMALL, "n_groups": 2, "top_groups": 1}
