"""Gemma equals transformers' Gemma, Gemma 2 and Gemma 3: logits, and the gradient of every parameter.

``MT_PARITY_TABLE=FILE pytest tests/gemma tests/qwen`` writes down how far they are apart.
"""

from __future__ import annotations

import pytest
import torch
from tests.families.forward import BaseMasks, BaseOptions
from transformers.models.gemma3.modeling_gemma3 import Gemma3TextScaledWordEmbedding

from mt_plugin_gemma.model import Embedding, round_to


class TestGemma(BaseMasks, BaseOptions):
    parameters = {**BaseMasks.parameters, **BaseOptions.parameters}
    cases = [
        "1, plain",
        "1, one key head",
        "2, window 7",
        "2, window as long as the text",
        "2, no soft-cap",
        "2, global blocks only",
        "3, window 5",
        "3, window 1",
        "3, linear scaling",
        "3, query scalar",
    ]
    cached_cases = ["1, plain", "2, window 7", "3, window 5", "3, window 1"]
    masked_cases = rounded_cases = ["1, plain", "2, window 7", "3, window 5"]
    without = {
        "the window of 2": ("2, window 7", {"window": 40}),
        "the window of 3": ("3, window 5", {"window": 40}),
        "the soft-cap": ("2, window 7", {"attention_softcap": 500.0}),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [640, 2048, 3072, 3840, 5376])
def test_embeddings_are_scaled_by_the_rounded_square_root_of_their_width(width: int, dtype: torch.dtype) -> None:
    assert round_to(width**0.5, dtype) == torch.tensor(width**0.5).to(dtype).item()
    theirs = Gemma3TextScaledWordEmbedding(61, width, 0, embed_scale=width**0.5).to(dtype)
    ours = Embedding(61, width).to(dtype)
    ours.load_state_dict(theirs.state_dict())
    ids = torch.arange(61)[None]
    assert torch.equal(ours(ids), theirs(ids))
