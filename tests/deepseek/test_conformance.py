"""The family keeps what the kit asks of every one; its layouts are in tests/families, V2 in test_parity.py."""

from __future__ import annotations

from mt_conformance import BaseModelConformance
from mt_plugin_deepseek import plugin


class TestDeepseek(BaseModelConformance):
    plugin, name, launches = plugin, "deepseek", False
    idle_options = ("balance_rate",)  # acts after a step
    options = {
        "dim": 32,
        "n_layers": 2,
        "n_heads": 2,
        "n_experts": 4,
        "n_groups": 2,
        "top_groups": 1,
        "expert_dim": 32,
        "ffn_dim": 64,
    }
