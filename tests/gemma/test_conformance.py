"""Every generation keeps what the kit asks of every family; their layouts are in tests/families."""

from __future__ import annotations

from mt_conformance import BaseModelConformance
from mt_plugin_gemma import plugin

SMALL = {"dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 48}


class TestGemma1(BaseModelConformance):
    plugin, name, launches, variant = plugin, "gemma", False, "1-tiny"
    options = {**SMALL, "n_kv_heads": 1}


class TestGemma2(BaseModelConformance):
    plugin, name, launches, variant = plugin, "gemma", False, "2-tiny"
    options = {**SMALL, "window": 8}


class TestGemma3(BaseModelConformance):
    plugin, name, launches, variant = plugin, "gemma", False, "3-tiny"
    options = {**SMALL, "window": 8, "global_every": 2}
