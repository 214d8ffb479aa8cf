"""Every published size loads and has the published number of parameters; a shape that is no DeepSeek's is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from mt_plugin_deepseek.config import DeepseekConfig
from mt_plugin_deepseek.model import Deepseek
from mt_plugin_deepseek.variants import VARIANTS

PUBLISHED = {"v2-lite": (15.7, 2.4), "v2": (236, 21), "v3": (671, 37)}
"""Parameters in all and met by a token, in 10⁹: https://arxiv.org/abs/2405.04434 (abstract, appendix B), https://arxiv.org/abs/2412.19437."""


@pytest.mark.parametrize("size", PUBLISHED)
def test_a_size_has_the_published_number_of_parameters(size: str) -> None:
    with torch.device("meta"):
        model = Deepseek(DeepseekConfig(**VARIANTS[size]))
    count = sum(parameter.numel() for parameter in model.parameters())
    total, met = PUBLISHED[size]
    assert count / 1e9 == pytest.approx(total, rel=2e-3)
    assert model.flops_per_token(1) / 6e9 == pytest.approx(
        met, rel=0.07
    )  # the papers round, and count an embedding or not


def test_dense_blocks_are_at_the_bottom_and_a_bias_for_the_choice_is_v3s() -> None:
    names = {size: dict(Deepseek(DeepseekConfig(**VARIANTS[size])).named_parameters()) for size in ("v2-tiny", "tiny")}
    for found in names.values():
        assert "model.layers.0.mlp.gate_proj.weight" in found
        assert "model.layers.1.mlp.gate.weight" in found
    only_v3 = {name.partition(".mlp.")[2] for name in names["tiny"].keys() - names["v2-tiny"].keys() if ".mlp." in name}
    assert only_v3 == {"gate.e_score_correction_bias"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"generation": 4}, "generation"),
        ({"n_groups": 3}, "are no n_groups=3 groups"),
        ({"top_groups": 5}, "top_groups=5 of n_groups=4"),
        ({"top_k": 5}, "top_k=5 of the 4 experts"),
        ({"n_groups": 8, "top_groups": 8}, "two best experts"),
        ({"n_dense": 4}, "leaves no block with experts"),
        ({"generation": 2}, "normalise=True is generation 3's"),
        ({"generation": 2, "normalise": False, "balance_rate": 0.001}, "balance_rate=0.001 is generation 3's"),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0, "original_max_seq_len": 512}},
            "'dynamic' is not DeepSeek",
        ),
    ],
)
def test_a_shape_that_is_no_deepseeks_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        DeepseekConfig(**{**VARIANTS["tiny"], **changes})
