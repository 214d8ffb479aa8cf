"""Every published size loads and has the published number of parameters; a shape that is no Qwen's is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from mt_core.nn import tokens_seen
from mt_plugin_qwen.config import QwenConfig
from mt_plugin_qwen.model import Qwen
from mt_plugin_qwen.variants import VARIANT_DEFAULTS, VARIANTS

PUBLISHED = {
    "2.5-0.5b": 494_032_768,
    "2.5-1.5b": 1_543_714_304,
    "2.5-3b": 3_085_938_688,
    "2.5-7b": 7_615_616_512,
    "2.5-14b": 14_770_033_664,
    "2.5-32b": 32_763_876_352,
    "2.5-72b": 72_706_203_648,
    "3-0.6b": 751_632_384,
    "3-1.7b": 2_031_739_904,
    "3-4b": 4_022_468_096,
    "3-8b": 8_190_735_360,
    "3-14b": 14_768_307_200,
    "3-32b": 32_762_123_264,
    "3-30b-a3b": 30_532_122_624,
    "3-235b-a22b": 235_093_634_560,
}
"""Totals of the published safetensors files (the model pages on the Hugging Face hub)."""

STORED_TWICE = ("3-0.6b", "3-1.7b")
"""Their files repeat the tied head, so that their totals count the embedding twice."""


@pytest.mark.parametrize("size", VARIANTS)
def test_a_size_has_the_published_number_of_parameters(size: str) -> None:
    with torch.device("meta"):
        model = Qwen(QwenConfig(**VARIANTS[size]))
    count = sum(parameter.numel() for parameter in model.parameters())
    if "tiny" in size:
        assert 500_000 < count < 1_000_000
        assert size in VARIANT_DEFAULTS
        return
    if size in STORED_TWICE:
        count += model.model.embed_tokens.weight.numel()
    assert count == PUBLISHED[size]


def test_a_generation_has_its_biases_and_norms_and_no_others() -> None:
    for size, own in {
        "2.5-tiny": {"q_proj.bias", "k_proj.bias", "v_proj.bias"},
        "3-tiny": {"q_norm.weight", "k_norm.weight"},
    }.items():
        names = dict(Qwen(QwenConfig(**VARIANTS[size])).named_parameters())
        plain = {f"{part}_proj.weight" for part in "qkvo"}
        prefix = "model.layers.0.self_attn."
        assert {name.removeprefix(prefix) for name in names if name.startswith(prefix)} == plain | own


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"n_kv_heads": 3}, "not a multiple of n_kv_heads=3"),
        ({"generation": 4}, "generation"),
        ({"head_dim": 15}, "head_dim"),
        ({"window_from": 2}, "window_from=2 without window"),
        ({"window": 8, "window_from": 4}, "leaves no block with window=8"),
        ({"n_experts": 4}, "top_k=8 of n_experts=4"),
        ({"n_experts": 8, "window": 8, "window_from": 1}, "window_from=1 in a mixture"),
        ({"n_experts": 8, "generation": 2}, "n_experts=8 in generation 2"),
        ({"balance": 0.1}, "balance=0.1 is for a mixture; set n_experts"),
        ({"top_k": 2, "expert_step": 2}, "top_k=2 is for a mixture.*expert_step=2 is for a mixture"),
        ({"n_experts": 8, "expert_step": 5}, "leave no block with experts"),
        ({"n_experts": 8, "dense_blocks": (0, 1, 2, 3)}, "leave no block with experts"),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0, "original_max_seq_len": 512}},
            "'dynamic' is not this family's; use none or linear",
        ),
    ],
)
def test_a_shape_that_is_no_qwens_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        QwenConfig(**{**VARIANTS["3-tiny"], **changes})


@pytest.mark.parametrize("window", [None, 1, 7, 30, 50])
def test_a_window_costs_what_it_sees(window: int | None) -> None:
    seen = [min(place + 1, window or 30) for place in range(30)]
    assert tokens_seen(30, window) == pytest.approx(sum(seen) / 30)


def test_a_step_costs_what_its_weights_and_scores_cost() -> None:
    """6 a weight that multiplies (https://arxiv.org/abs/2001.08361), and 12 a channel of the heads and token seen."""
    model = Qwen(QwenConfig(**{**VARIANTS["3-tiny"], "window": 7, "window_from": 3}))
    seen = 3 * tokens_seen(30, None) + tokens_seen(30, 7)
    beyond = model.flops_per_token(30) - model.flops_per_token(1)
    assert beyond == pytest.approx(12 * 4 * 48 * (seen - 4))
