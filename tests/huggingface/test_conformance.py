"""The fallback family keeps what the kit asks of every family; its layouts are in tests/families."""

from __future__ import annotations

from mt_conformance import BaseModelConformance
from mt_plugin_huggingface import plugin


class TestMistral(BaseModelConformance):
    plugin, name, launches = plugin, "huggingface", False
    idle_options = ("balance_loss",)  # added to the loss of mixtures
