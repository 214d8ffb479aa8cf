"""gpt-oss equals transformers' GptOssForCausalLM: logits, the gradient of every parameter, and greedy tokens."""

from __future__ import annotations

from tests.families.forward import BaseGreedy, BaseOptions

from mt_core import RopeScaling


class TestGptOss(BaseOptions, BaseGreedy):
    parameters = {**BaseOptions.parameters, **BaseGreedy.parameters}
    cases = cached_cases = ["YaRN", "tied, every third block global"]
    without = {
        "YaRN": ("YaRN", {"rope_scaling": RopeScaling()}),
        "the window": ("YaRN", {"window": 100}),
        "the clamp": ("YaRN", {"swiglu_limit": 100.0}),
        "the slope of the gate": ("YaRN", {"swiglu_alpha": 1.0}),
        "the second expert": ("YaRN", {"top_k": 1}),
    }
    generated_cases, prompt_lengths, new_tokens = ["YaRN"], [12], 30
