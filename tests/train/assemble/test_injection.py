"""What is refused before an adapter goes into a model."""

from __future__ import annotations

import pytest

from mt_core import ConfigError
from mt_core.plugins.host import PluginHost
from mt_train.assemble.injection import inject
from mt_train.assemble.parts import Parts
from mt_train.plugins.resolve import resolve


def test_an_adapter_that_looks_at_gradients_needs_an_optimizer_that_keeps_them() -> None:
    host = PluginHost.discover()
    for adapter, optimizer, refused in (
        ("adalora", "lomo", True),
        ("lora", "lomo", False),
        ("adalora", "adamw", False),
    ):
        parts = Parts.of(resolve({"model": "llama", "adapter": adapter, "optimizer": optimizer}, host))
        model = parts.model()
        if not refused:
            inject(parts, model)
            continue
        with pytest.raises(ConfigError, match="lomo updates each weight as its gradient arrives, and adapter adalora"):
            inject(parts, model)
