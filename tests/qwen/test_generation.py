"""Greedy tokens equal transformers' one by one, beyond the window, and a batch changes nothing."""

from __future__ import annotations

from tests.families.forward import BaseBatchedGreedy


class TestQwen(BaseBatchedGreedy):
    generated_cases = ["2.5, untied", "2.5, YaRN", "2.5, window 7 from block 1", "3, untied", "3, YaRN", "3, window 5"]
    prompt_lengths = [1, 30]
    batched_cases = ["2.5, window 7 from block 1", "3, YaRN"]
