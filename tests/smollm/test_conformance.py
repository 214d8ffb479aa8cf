"""The family keeps what the kit asks of every one; its layouts are in tests/families."""

from __future__ import annotations

from mt_conformance import BaseModelConformance
from mt_plugin_smollm import plugin


class TestSmolLM(BaseModelConformance):
    plugin, name, launches = plugin, "smollm", False
    options = {"dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 48, "no_rope_every": 2}
