"""Encoders and projectors as data."""

from __future__ import annotations

from typing import Any

import pytest

from mt_core import ComponentError, MtConfig
from mt_core.media import EncoderComponent, EncoderConfig
from mt_core.media import projector_of as parts_of

GIVEN: dict[str, Any] = {"name": "eye", "summary": "an eye", "width": len, "processor": len}


def test_a_projector_is_written_by_its_name_alone_or_with_its_options() -> None:
    alone = parts_of(EncoderConfig(projector="mlp"))["projector"]
    assert (alone.kind, alone.name, alone.options) == ("projector", "mlp", {})
    chosen = parts_of(EncoderConfig(projector={"name": "resampler", "queries": 4}))["projector"]
    assert (chosen.name, chosen.options) == ("resampler", {"queries": 4})


def test_an_encoder_that_reads_nothing_is_refused() -> None:
    with pytest.raises(ComponentError, match="reads no kind of part"):
        EncoderComponent(**GIVEN, reads=frozenset())


def test_an_encoder_whose_config_lacks_the_common_keys_is_refused() -> None:
    with pytest.raises(ComponentError, match="must be a subclass of mt_core"):
        EncoderComponent(**GIVEN, reads=frozenset({"image"}), config=MtConfig)
