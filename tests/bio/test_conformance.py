"""Encoders of sequences, as the kit tests every encoder."""

from __future__ import annotations

from typing import Any

import pytest

from mt_conformance import BaseEncoderConformance
from mt_plugin_bio import plugin

SMALL: dict[str, Any] = {"dim": 16, "n_layers": 2}
ATTENTION: dict[str, Any] = {**SMALL, "n_heads": 2, "ffn_dim": 8}
OPTIONS: dict[str, Any] = {
    "hyenadna": {**SMALL, "l_max": 130},
    "dnabert2": {**ATTENTION, "k": 2},
    "nucleotide-transformer": ATTENTION,
    "esm2": ATTENTION,
}
PROTEINS = (b"M", b"LAGVSE", b"MKTAYIAKQR" * 3, b"MW")
GENES = (b"A", b"GATTACA", b"ACGTNNACGT" * 9, b"CC")


def test_each_encoder_is_here() -> None:
    assert sorted(OPTIONS) == sorted(each.name for each in plugin.mt_encoders())


class TestEncoders(BaseEncoderConformance):
    plugin = plugin
    broken = (b"", b"AC\xff", b"12", b"ACGT\n", b"acgt", b" ")

    @pytest.fixture(autouse=True, params=sorted(OPTIONS))
    def _each(self, request: pytest.FixtureRequest) -> None:
        self.name, self.options = request.param, OPTIONS[request.param]
        self.contents = PROTEINS if self.name == "esm2" else GENES
