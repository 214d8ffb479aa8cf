"""Beam search equals transformers', token for token."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaForCausalLM

from mt_conformance.forward import generate_greedily
from mt_core.errors import MtError
from mt_core.generation import SamplingRules
from mt_plugin_llama.model import Llama
from mt_train.generation.beams import search

Pair = tuple[Llama, LlamaForCausalLM]


def both(
    pair: Pair, prompt: list[int], rules: SamplingRules, eos: list[int], most: int = 12
) -> tuple[list[int], list[int]]:
    """Ours and theirs, without the end token and what follows it."""
    found = search(pair[0], prompt, most, rules=rules, end_ids=eos)
    ids = torch.tensor([prompt])
    theirs = (
        pair[1]
        .generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=most,
            num_beams=rules.num_beams,
            length_penalty=rules.length_penalty,
            early_stopping=rules.early_stopping,
            repetition_penalty=rules.repetition_penalty,
            no_repeat_ngram_size=rules.no_repeat_ngram or 0,
            min_new_tokens=rules.min_new_tokens,
            eos_token_id=eos or None,
            pad_token_id=0,
        )[0, len(prompt) :]
        .tolist()
    )
    end = next((at for at, token in enumerate(theirs) if token in eos), len(theirs))
    assert found.end_id == (theirs[end] if end < len(theirs) else None)
    return found.tokens, theirs[:end]


@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 1.0, 2.5])
@pytest.mark.parametrize("beams", [2, 5])
def test_beam_search_equals_transformers(
    sharp_pair: Pair, beams: int, length_penalty: float, early_stopping: bool
) -> None:
    rules = SamplingRules(num_beams=beams, length_penalty=length_penalty, early_stopping=early_stopping)
    lengths = set()
    for seed in range(10):
        dice = torch.Generator().manual_seed(seed)
        prompt = torch.randint(0, 23, (1 + seed % 6,), generator=dice).tolist()
        eos = torch.randperm(23, generator=dice)[: 1 + seed % 2].tolist()
        ours, theirs = both(sharp_pair, prompt, rules, eos)
        assert ours == theirs, f"seed {seed}"
        lengths.add(len(ours))
    always_long = length_penalty > 1 and not early_stopping
    assert len(lengths) > 1 or always_long, "some texts end early and some do not, or this proves little"


@pytest.mark.parametrize(
    "rules",
    [
        SamplingRules(num_beams=3, repetition_penalty=1.4),
        SamplingRules(num_beams=3, no_repeat_ngram=2),
        SamplingRules(num_beams=3, min_new_tokens=5, early_stopping=True),
    ],
    ids=["repetition", "ngram", "least"],
)
def test_beams_obey_the_rules_that_look_back_as_in_transformers(sharp_pair: Pair, rules: SamplingRules) -> None:
    for eos in range(4):
        ours, theirs = both(sharp_pair, [7, 3, 7], rules, [eos])
        assert ours == theirs


@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 1.0])
def test_rules_that_leave_no_text_are_told(sharp_pair: Pair, length_penalty: float) -> None:
    """23 tokens of which none may come twice give no text of 40."""
    rules = SamplingRules(num_beams=3, no_repeat_ngram=1, length_penalty=length_penalty)
    with pytest.raises(MtError, match="no_repeat_ngram"):
        search(sharp_pair[0], [1], 40, rules=rules)


def test_without_an_end_token_beams_run_to_the_wanted_length(pair: Pair) -> None:
    ours, theirs = both(pair, [5, 6], SamplingRules(num_beams=4), [])
    assert ours == theirs
    assert len(ours) == 12


def test_more_beams_never_find_a_less_likely_text_than_greedy_here(sharp_pair: Pair) -> None:
    model = sharp_pair[0]

    def log_probability(new: list[int]) -> float:
        ids = torch.tensor([[4, *new]])
        with torch.inference_mode():
            log = sharp_pair[1](ids).logits[0].log_softmax(-1)
        return float(sum(log[at, token] for at, token in enumerate(new)))

    (greedy,) = generate_greedily(model, [[4]], 8)
    beams = search(model, [4], 8, rules=SamplingRules(num_beams=8))
    assert log_probability(beams.tokens) >= log_probability(greedy)
    assert sum(beams.logprobs) == pytest.approx(log_probability(beams.tokens), abs=1e-4)
