"""Qwen equals transformers' Qwen2 and Qwen3: logits, and the gradient of every parameter.

``MT_PARITY_TABLE=FILE pytest tests/gemma tests/qwen`` writes down how far they are apart.
"""

from __future__ import annotations

from tests.families.forward import BaseMasks, BaseOptions

from mt_core import RopeScaling


class TestQwen(BaseMasks, BaseOptions):
    parameters = {**BaseMasks.parameters, **BaseOptions.parameters}
    cases = [
        "2.5, tied",
        "2.5, untied",
        "2.5, one key head",
        "2.5, YaRN",
        "2.5, window 7 from block 1",
        "3, tied",
        "3, untied",
        "3, heads wider than the model",
        "3, YaRN",
        "3, linear scaling",
        "3, Llama 3 scaling",
        "3, window 5",
        "3, experts",
        "3, experts in some blocks, window 5",
    ]
    cached_cases = ["2.5, YaRN", "2.5, window 7 from block 1", "3, untied", "3, window 5"]
    masked_cases = ["2.5, tied", "2.5, window 7 from block 1", "3, untied"]
    rounded_cases = ["2.5, tied", "3, untied"]
    without = {
        "a window of some blocks": ("2.5, window 7 from block 1", {"window": None, "window_from": 0}),
        "a window": ("3, window 5", {"window": None}),
        "YaRN": ("2.5, YaRN", {"rope_scaling": RopeScaling()}),
        "linear scaling": ("3, linear scaling", {"rope_scaling": RopeScaling()}),
    }
