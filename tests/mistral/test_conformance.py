"""The family keeps what the kit asks of every one; its layouts are in tests/families."""

from __future__ import annotations

from mt_conformance import BaseModelConformance
from mt_plugin_mistral import plugin


class TestMistral(BaseModelConformance):
    plugin, name, launches = plugin, "mistral", False
    options = {"dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 48, "window": 8}


class TestMixtral(BaseModelConformance):
    plugin, name, launches, variant = plugin, "mistral", False, "tiny-moe"
    idle_options = ("balance",)  # added to the loss
    options = {"dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 48}
