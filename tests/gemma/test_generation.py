"""Greedy tokens equal transformers' one by one, beyond the window, and a batch changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mt_conformance.forward import generate_greedily

MODELS = ["1, one key head", "2, window 7", "3, window 5", "3, linear scaling"]


@pytest.fixture
def talker(pair: Callable[..., Any]) -> Callable[[str], Any]:
    """``talker(name)``: a pair that does not say its last token again and again, as tied embeddings of this size would."""

    def made(name: str) -> Any:
        ours, theirs = pair(name)
        theirs.generation_config.eos_token_id = theirs.generation_config.bos_token_id = None
        with torch.no_grad():
            for model in (ours, theirs):
                model.model.embed_tokens.weight.mul_(0.05)
        return ours.eval(), theirs.eval()

    return made


@pytest.mark.parametrize("length", [1, 4, 30])
@pytest.mark.parametrize("name", MODELS)
def test_greedy_output_equals_transformers_token_for_token(name: str, length: int, talker: Callable[..., Any]) -> None:
    ours, theirs = talker(name)
    prompt = torch.randint(0, 61, (1, length), generator=torch.Generator().manual_seed(length))
    mask = torch.ones_like(prompt)
    expected = theirs.generate(prompt, attention_mask=mask, max_new_tokens=40, do_sample=False, pad_token_id=0)
    assert generate_greedily(ours, [prompt[0].tolist()], 40) == [expected[0, length:].tolist()]
    assert len(set(expected[0, length:].tolist())) > 5, "a model that repeats itself shows nothing"


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_gives_the_greedy_tokens_of_one_prompt_at_a_time(name: str, talker: Callable[..., Any]) -> None:
    """Prompts shorter and longer than the window, padded on the left; some end before others."""
    ours, _ = talker(name)
    prompts = [list(range(1, 20)), [3], [40, 2, 8, 8, 1, 60], list(range(30, 60))]
    assert generate_greedily(ours, prompts, 25) == [generate_greedily(ours, [prompt], 25)[0] for prompt in prompts]
