"""What is asked of an objective before its rows are encoded."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from mt_core.errors import ComponentError
from mt_core.nn import TokenObjective
from mt_core.plugins.host import PluginHost
from mt_train.assemble.data import build_data
from mt_train.assemble.parts import Parts
from mt_train.plugins.resolve import resolve


@pytest.mark.usefixtures("kit_model")
@pytest.mark.parametrize("pipeline", [1, 2])
def test_an_objective_with_modules_of_its_own_is_refused_before_a_row_is_read(
    monkeypatch: pytest.MonkeyPatch, pipeline: int
) -> None:
    """They would be called, used in the loss, and neither trained nor saved."""
    seen: list[Any] = []

    def modules(self: TokenObjective, model_config: Any) -> nn.Module:
        seen.append(model_config.vocab_size)
        return nn.Linear(2, 1)

    monkeypatch.setattr(TokenObjective, "modules", modules)
    monkeypatch.setattr(TokenObjective, "collate", lambda *given, **named: pytest.fail("rows were collated"))
    parts = Parts.of(resolve({"model": "kit-tiny", "parallel": {"pipeline": pipeline}}, PluginHost.discover()))
    with pytest.raises(
        ComponentError, match=r"--objective pretrain has modules beside the model .* neither trains nor saves"
    ):
        build_data(parts)
    assert seen, "the model's config is handed over"
