"""Every published size loads and has the published number of parameters; a shape that is no gpt-oss's is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from mt_plugin_gpt_oss.config import GptOssConfig
from mt_plugin_gpt_oss.model import GptOss
from mt_plugin_gpt_oss.variants import VARIANTS

PUBLISHED = {"20b": (20.91, 3.61), "120b": (116.83, 5.13)}
"""Parameters in all and met by a token, in 10⁹: https://arxiv.org/abs/2508.10925, table 1. The embedding counts once for a token."""


@pytest.mark.parametrize("size", PUBLISHED)
def test_a_size_has_the_published_number_of_parameters(size: str) -> None:
    with torch.device("meta"):
        model = GptOss(GptOssConfig(**VARIANTS[size]))
    count = sum(parameter.numel() for parameter in model.parameters())
    active = model.flops_per_token(1) / 6
    total, met = PUBLISHED[size]
    assert round(count / 1e9, 2) == total
    assert active / 1e9 == pytest.approx(met, rel=2e-3)


def test_every_other_block_has_the_window_and_the_last_sees_all() -> None:
    config = GptOssConfig(**VARIANTS["20b"])
    assert [config.window_of(index) for index in range(24)] == [128, None] * 12


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"n_kv_heads": 3}, "not a multiple of n_kv_heads=3"),
        ({"top_k": 9}, "top_k=9 of n_experts=8"),
        ({"head_dim": 15}, "head_dim"),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0, "original_max_seq_len": 512}},
            "'dynamic' is not this family's",
        ),
    ],
)
def test_a_shape_that_is_no_gpt_osss_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        GptOssConfig(**{**VARIANTS["tiny"], **changes})
