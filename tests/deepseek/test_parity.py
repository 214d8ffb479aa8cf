"""DeepSeek equals transformers' DeepseekV2 and DeepseekV3: logits, the gradient of every parameter, and greedy tokens."""

from __future__ import annotations

import pytest
import torch
from tests.families.forward import TOLERANCE, BaseGreedy, BaseOptions, Distance, MakePair, rows

from mt_core import RopeScaling
from mt_core.nn import KVCache
from mt_plugin_deepseek.model import CHOICE_BIAS


class TestDeepseek(BaseOptions, BaseGreedy):
    parameters = {**BaseOptions.parameters, **BaseGreedy.parameters}
    cases, cached_cases = ["V2 without groups", "V2", "V3"], ["V2 without groups", "V3"]
    untrained = (CHOICE_BIAS,)
    without = {
        "YaRN": ("V3", {"rope_scaling": RopeScaling()}),
        "YaRN's temperature": ("V3", {"rope_scaling": RopeScaling(type="yarn", factor=4.0, original_max_seq_len=16)}),
        "groups of V2": ("V2", {"n_groups": 1, "top_groups": 1}),
        "groups of V3": ("V3", {"n_groups": 1, "top_groups": 1}),
        "weights that add up to one": ("V3", {"normalise": False}),
        "the factor of experts": ("V2", {"routed_scale": 1.0}),
    }
    generated_cases, prompt_lengths, new_tokens = ["V3"], [12], 30


def test_the_bias_chooses_experts_and_weighs_none(pair: MakePair, distance: Distance) -> None:
    """A constant one changes nothing, since it adds to all scores alike; another one does."""
    ours, _ = pair("V3")
    before = ours(rows([40]))
    biases = [p for n, p in ours.named_parameters() if n.endswith(CHOICE_BIAS)]
    with torch.no_grad():
        for bias in biases:
            bias.add_(0.25)
        assert distance(ours(rows([40])), before) < TOLERANCE
        for bias in biases:
            bias.zero_()
        assert distance(ours(rows([40])), before) > 1e-3


@pytest.mark.parametrize("name", ["V2 without groups", "V3"])
def test_a_cache_keeps_latents_and_one_key_that_all_heads_share(name: str, pair: MakePair) -> None:
    ours, cache = pair(name)[0], KVCache()
    ours(rows([40]), cache)
    latents, shared = cache.get(0)
    assert (latents.shape, shared.shape) == ((2, 40, 1, 24), (2, 40, 1, 8))
