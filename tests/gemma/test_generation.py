"""Greedy tokens equal transformers' one by one, beyond the window, and a batch changes nothing."""

from __future__ import annotations

import pytest
import torch
from tests.families.forward import BaseBatchedGreedy, MakePair, Pair


class TestGemma(BaseBatchedGreedy):
    generated_cases = batched_cases = ["1, one key head", "2, window 7", "3, window 5", "3, linear scaling"]
    prompt_lengths = [1, 4, 30]

    @pytest.fixture
    def pair(self, pair: MakePair) -> MakePair:
        """``pair(name)`` that does not say its last token again and again, as tied embeddings of this size would."""

        def make(name: str) -> Pair:
            models = pair(name)
            with torch.no_grad():
                for model in models:
                    model.model.embed_tokens.weight.mul_(0.05)
            return models

        return make
