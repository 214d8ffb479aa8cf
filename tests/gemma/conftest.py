"""Gemmas of ours beside the same ones of transformers."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from tests.families.forward import MakePair, Pair, draw_vectors, make_models

from mt_plugin_gemma.config import GemmaConfig
from mt_plugin_gemma.export import their_config
from mt_plugin_gemma.model import Gemma

SHAPE: dict[str, Any] = {
    "vocab_size": 61,
    "max_seq_len": 256,
    "dim": 64,
    "n_layers": 4,
    "n_heads": 4,
    "n_kv_heads": 2,
    "head_dim": 16,
    "ffn_dim": 96,
}
TWO: dict[str, Any] = {"generation": 2, "attention_softcap": 5.0, "final_softcap": 3.0, "query_scalar": 24.0}
THREE: dict[str, Any] = {"generation": 3, "query_scalar": 16.0, "rope_theta": 1e6, "rope_local_theta": 1e4}
MODELS: dict[str, dict[str, Any]] = {
    "1, plain": {"generation": 1},
    "1, one key head": {"generation": 1, "n_kv_heads": 1},
    "2, window 7": {**TWO, "window": 7, "global_every": 2},
    "2, window as long as the text": {**TWO, "window": 40, "global_every": 2},
    "2, no soft-cap": {"generation": 2, "query_scalar": 16.0, "window": 7, "global_every": 2},
    "2, global blocks only": {**TWO, "window": 7, "global_every": 1},
    "3, window 5": {**THREE, "window": 5, "global_every": 3},
    "3, window 1": {**THREE, "window": 1, "global_every": 2},
    "3, linear scaling": {**THREE, "window": 16, "global_every": 2, "rope_factor": 8.0},
    "3, query scalar": {**THREE, "window": 9, "global_every": 4, "query_scalar": 21.0, "final_softcap": 4.0},
}
"""Generation and feature. Soft-caps are low, so that they bend what such small models say."""


@pytest.fixture(scope="session")
def pair() -> MakePair:
    """``pair(name)``: the same random weights in both; norms are not at 0, where a fault would hide."""
    return make_pair


def make_pair(name: str, **more: Any) -> Pair:
    config = GemmaConfig(**{**SHAPE, **MODELS[name], **more})
    return make_models(Gemma, config, their_config(config), draw=partial(draw_vectors, low=-0.5, high=0.5))
