"""Llama keeps what the kit asks of every family; its layouts are in tests/families."""

from __future__ import annotations

from mt_conformance import BaseModelConformance
from mt_plugin_llama import plugin


class TestLlama(BaseModelConformance):
    plugin, name, launches = plugin, "llama", False
    options = {"dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 48}
