"""Both generations, and experts, keep what the kit asks of every family; their layouts are in tests/families."""

from __future__ import annotations

from mt_conformance import BaseModelConformance
from mt_plugin_qwen import plugin

SMALL = {"dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 48}


class TestQwen25(BaseModelConformance):
    plugin, name, launches, variant = plugin, "qwen", False, "2.5-tiny"
    options = {**SMALL, "window": 8, "window_from": 1}


class TestQwen3Mixture(BaseModelConformance):
    plugin, name, launches, variant = plugin, "qwen", False, "3-tiny-moe"
    idle_options = ("ffn_dim", "balance")  # no dense block, and what is added to the loss
    options = {**SMALL, "expert_dim": 24}


class TestQwen3(BaseModelConformance):
    plugin, name, launches, variant, options = plugin, "qwen", False, "3-tiny", SMALL
