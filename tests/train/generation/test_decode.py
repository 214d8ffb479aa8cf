"""Tokens equal transformers' one by one, and a batch changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaForCausalLM

from mt_core.nn import Batch, KVCache
from mt_plugin_llama.model import Llama
from mt_tools.generation.generate import prompt_generator
from mt_train.generation.config import SamplingRules
from mt_train.generation.decode import Continuation, advance, decode, prefill

GREEDY = SamplingRules(greedy=True)
PROMPTS = st.lists(st.lists(st.integers(0, 96), min_size=1, max_size=12), min_size=2, max_size=5)


def continued(
    model: Llama, prompts: Sequence[Sequence[int]], rules: SamplingRules = GREEDY, *, most: int = 12, eos: int = -1
) -> list[Continuation]:
    rows = [Continuation(prompt, most, prompt_generator(7, index)) for index, prompt in enumerate(prompts)]
    decode(model, rows, rules=rules, eos_ids=[eos] if eos >= 0 else [])
    return rows


def alone(model: Llama, prompts: Sequence[Sequence[int]], rules: SamplingRules, *, eos: int = -1) -> list[list[int]]:
    rows = [Continuation(prompt, 12, prompt_generator(7, index)) for index, prompt in enumerate(prompts)]
    for row in rows:
        decode(model, [row], rules=rules, eos_ids=[eos] if eos >= 0 else [])
    return [row.new for row in rows]


@pytest.mark.parametrize("length", [1, 2, 17])
def test_greedy_output_equals_transformers_token_for_token(pair: tuple[Llama, LlamaForCausalLM], length: int) -> None:
    ours, theirs = pair
    prompt = torch.randint(0, 97, (1, length), generator=torch.Generator().manual_seed(length))
    mask = torch.ones_like(prompt)
    expected = theirs.generate(prompt, attention_mask=mask, max_new_tokens=40, do_sample=False, pad_token_id=0)
    (row,) = continued(ours, [prompt[0].tolist()], most=40)
    assert row.new == expected[0, length:].tolist()
    assert row.finish == "length"


def test_generation_ends_before_the_end_token(pair: tuple[Llama, LlamaForCausalLM]) -> None:
    (row,) = continued(pair[0], [[3, 4]])
    (ended,) = continued(pair[0], [[3, 4]], eos=row.new[5])
    assert ended.new == row.new[: row.new.index(row.new[5])]
    assert ended.finish == "eos"


def test_a_row_ends_where_its_caller_says_so(pair: tuple[Llama, LlamaForCausalLM]) -> None:
    seen: list[int] = []
    row = Continuation([5], 12, stops=lambda token: seen.append(token) or len(seen) == 3)
    decode(pair[0], [row], rules=GREEDY)
    assert (row.new, row.finish) == (seen, "stop")
    assert len(seen) == 3


@settings(max_examples=15, deadline=None)
@given(prompts=PROMPTS)
def test_a_batch_gives_the_greedy_tokens_of_one_prompt_at_a_time(
    pair: tuple[Llama, LlamaForCausalLM], prompts: list[list[int]]
) -> None:
    assert [row.new for row in continued(pair[0], prompts)] == alone(pair[0], prompts, GREEDY)


@settings(max_examples=15, deadline=None)
@given(prompts=PROMPTS, eos=st.integers(0, 22))
def test_a_batch_draws_the_tokens_of_one_prompt_at_a_time(
    sharp_pair: tuple[Llama, LlamaForCausalLM], prompts: list[list[int]], eos: int
) -> None:
    prompts = [[token % 23 for token in prompt] for prompt in prompts]
    rules = SamplingRules(
        top_p=0.95, repetition_penalty=1.2, frequency_penalty=0.3, no_repeat_ngram=3, min_new_tokens=2
    )
    batch = continued(sharp_pair[0], prompts, rules, eos=eos)
    assert [row.new for row in batch] == alone(sharp_pair[0], prompts, rules, eos=eos)


@settings(max_examples=15, deadline=None)
@given(prompts=PROMPTS)
def test_logits_of_a_padded_row_are_those_of_the_row_alone(
    pair: tuple[Llama, LlamaForCausalLM], prompts: list[list[int]]
) -> None:
    model = pair[0]
    with torch.inference_mode():
        logits, cache = prefill(model, prompts)
        later = advance(model, [1] * len(prompts), [len(prompt) for prompt in prompts], cache)
        for row, prompt in enumerate(prompts):
            one, own = prefill(model, [prompt])
            torch.testing.assert_close(logits[row], one[0], atol=5e-5, rtol=1e-5)
            torch.testing.assert_close(later[row], advance(model, [1], [len(prompt)], own)[0], atol=5e-5, rtol=1e-5)


def test_positions_begin_at_zero_with_the_first_real_token(
    pair: tuple[Llama, LlamaForCausalLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[list[int]]] = []
    forward = pair[0].forward

    def watched(batch: Batch, cache: KVCache) -> torch.Tensor:
        seen.append(batch.positions.tolist())
        return forward(batch, cache)

    monkeypatch.setattr(pair[0], "forward", watched)
    continued(pair[0], [[1, 2, 3, 4], [5, 6]], most=3)
    assert seen == [[[0, 1, 2, 3], [0, 0, 0, 1]], [[4], [2]], [[5], [3]]]


def test_rows_that_end_early_leave_the_others_as_they_are(pair: tuple[Llama, LlamaForCausalLM]) -> None:
    prompts, model = [[1, 2, 3, 4], [9], [8, 7]], pair[0]
    rows = [Continuation(prompt, most) for prompt, most in zip(prompts, (2, 12, 5), strict=True)]
    decode(model, rows, rules=GREEDY)
    whole = alone(model, prompts, GREEDY)
    assert [row.new for row in rows] == [whole[0][:2], whole[1], whole[2][:5]]


def test_equal_seeds_draw_equal_tokens(pair: tuple[Llama, LlamaForCausalLM]) -> None:
    def drawn(seed: int) -> list[int]:
        row = Continuation([5], 20, prompt_generator(seed, 0))
        decode(pair[0], [row], rules=SamplingRules(top_k=20))
        return row.new

    assert drawn(1) == drawn(1) != drawn(2)
