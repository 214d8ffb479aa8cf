"""Tokens equal transformers' one by one, and a batch changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaForCausalLM

from mt_conformance.forward import Numbers
from mt_core.errors import UsageError
from mt_core.generation import Generation, GenerationConfig, SamplingRules
from mt_core.nn import Batch, KVCache, TrainModel
from mt_plugin_llama.model import Llama
from mt_train.generation.continuation import Continuer, continue_prompts
from mt_train.generation.forward import last_logits
from mt_train.generation.loaded_model import LoadedModel

GREEDY = SamplingRules(greedy=True)
PROMPTS = st.lists(st.lists(st.integers(0, 96), min_size=1, max_size=12), min_size=2, max_size=5)


def load(model: TrainModel, *eos_ids: int) -> LoadedModel:
    return LoadedModel(model, Numbers(), 128, eos_ids)  # type: ignore[arg-type]


def generate(
    model: Llama,
    prompts: Sequence[Sequence[int]],
    rules: SamplingRules = GREEDY,
    *,
    most: int = 12,
    eos: int = -1,
    size: int = 8,
) -> list[Generation]:
    config = GenerationConfig(rules=rules, max_new_tokens=most, seed=7)
    return continue_prompts(load(model, *([eos] if eos >= 0 else [])), prompts, config, batch_size=size)


@pytest.mark.parametrize("length", [1, 2, 17])
def test_greedy_output_equals_transformers_token_for_token(pair: tuple[Llama, LlamaForCausalLM], length: int) -> None:
    ours, theirs = pair
    prompt = torch.randint(0, 97, (1, length), generator=torch.Generator().manual_seed(length))
    mask = torch.ones_like(prompt)
    expected = theirs.generate(prompt, attention_mask=mask, max_new_tokens=40, do_sample=False, pad_token_id=0)
    (found,) = generate(ours, [prompt[0].tolist()], most=40)
    assert list(found.ids) == expected[0, length:].tolist()
    assert found.finish == "length"


def test_generation_ends_before_the_end_token_and_keeps_it_apart(pair: tuple[Llama, LlamaForCausalLM]) -> None:
    (whole,) = generate(pair[0], [[3, 4]])
    assert whole.end_id is None
    (ended,) = generate(pair[0], [[3, 4]], eos=whole.ids[5])
    assert ended.ids == whole.ids[: whole.ids.index(whole.ids[5])]
    assert (ended.finish, ended.end_id) == ("eos", whole.ids[5])


@settings(max_examples=15, deadline=None)
@given(prompts=PROMPTS, size=st.integers(2, 8))
def test_a_batch_gives_the_greedy_tokens_of_one_prompt_at_a_time(
    pair: tuple[Llama, LlamaForCausalLM], prompts: list[list[int]], size: int
) -> None:
    assert generate(pair[0], prompts, size=size) == generate(pair[0], prompts, size=1)


@settings(max_examples=15, deadline=None)
@given(prompts=PROMPTS, eos=st.integers(0, 22), size=st.integers(2, 8))
def test_a_batch_draws_the_tokens_of_one_prompt_at_a_time(
    sharp_pair: tuple[Llama, LlamaForCausalLM], prompts: list[list[int]], eos: int, size: int
) -> None:
    prompts = [[token % 23 for token in prompt] for prompt in prompts]
    rules = SamplingRules(
        top_p=0.95, repetition_penalty=1.2, frequency_penalty=0.3, no_repeat_ngram=3, min_new_tokens=2
    )
    batch = generate(sharp_pair[0], prompts, rules, eos=eos, size=size)
    assert batch == generate(sharp_pair[0], prompts, rules, eos=eos, size=1)


def test_positions_begin_at_zero_with_the_first_real_token(pair: tuple[Llama, LlamaForCausalLM]) -> None:
    seen: list[list[list[int]]] = []

    def watched(model: TrainModel, batch: Batch, cache: KVCache) -> torch.Tensor:
        seen.append(sorted(batch.positions.tolist()))
        return last_logits(model, batch, cache)

    config = GenerationConfig(rules=GREEDY, max_new_tokens=3)
    continue_prompts(load(pair[0]), [[1, 2, 3, 4], [5, 6]], config, batch_size=2, forward=watched)
    assert seen == [[[0, 0, 0, 1], [0, 1, 2, 3]], [[2], [4]], [[3], [5]]]


def test_the_indices_decide_what_is_drawn(sharp_pair: tuple[Llama, LlamaForCausalLM]) -> None:
    loaded, config = load(sharp_pair[0]), GenerationConfig(max_new_tokens=12, seed=1)
    first, second = continue_prompts(loaded, [[5], [5]], config, batch_size=2)
    assert first != second
    assert continue_prompts(loaded, [[5], [5]], config, batch_size=2, indices=[1, 0]) == [second, first]
    assert continue_prompts(loaded, [[5], [5]], config, batch_size=1, indices=[0, 0]) == [first, first]
    other = GenerationConfig(max_new_tokens=12, seed=2)
    assert continue_prompts(loaded, [[5]], other, batch_size=1) != [first]


def test_a_prompt_without_room_is_refused_before_anything_is_generated(pair: tuple[Llama, LlamaForCausalLM]) -> None:
    def never(*_: object) -> torch.Tensor:
        raise AssertionError("nothing may run")

    for prompts, message in [([[1], [2] * 128], "the prompt has 128 tokens"), ([[1], []], "the prompt has no tokens")]:
        with pytest.raises(UsageError, match=message):
            continue_prompts(load(pair[0]), prompts, GenerationConfig(), batch_size=2, forward=never)


@pytest.mark.parametrize(
    "rules", [GREEDY, SamplingRules(top_k=20), SamplingRules(num_beams=3)], ids=["greedy", "drawn", "beams"]
)
def test_everything_that_is_computed_goes_through_one_function(
    pair: tuple[Llama, LlamaForCausalLM], rules: SamplingRules
) -> None:
    """A caller may run other forwards between them, as ZeRO 3 needs where another rank is not done."""
    calls = {"forward": 0, "model": 0, "head": 0}
    model = pair[0]

    def counted(model: TrainModel, batch: Batch, cache: KVCache) -> torch.Tensor:
        calls["forward"] += 1
        return last_logits(model, batch, cache)

    hooks = [
        model.register_forward_hook(lambda *_: calls.update(model=calls["model"] + 1)),
        model.head.register_forward_hook(lambda *_: calls.update(head=calls["head"] + 1)),
    ]
    prompts = [list(range(40)), list(range(30)), [3]]
    continue_prompts(
        load(model), prompts, GenerationConfig(rules=rules, max_new_tokens=5), batch_size=2, forward=counted
    )
    for hook in hooks:
        hook.remove()
    assert calls["forward"] == calls["model"] == calls["head"] > 5


@pytest.mark.parametrize("beams", [1, 3])
def test_tokens_and_logprobs_end_with_the_text_that_a_templates_stop_text_ends(
    pair: tuple[Llama, LlamaForCausalLM], beams: int
) -> None:
    """Beams are searched to their end before their text is looked at."""
    rules = SamplingRules(num_beams=beams, greedy=beams == 1)
    config = GenerationConfig(rules=rules, max_new_tokens=12, logprobs=True)
    (whole,) = continue_prompts(load(pair[0]), [[3, 4]], config, batch_size=1)
    stop = Numbers().decode(whole.ids[:1])
    template: Any = SimpleNamespace(stop_ids=(), stop_text=stop)
    (found,) = continue_prompts(load(pair[0]), [[3, 4]], config, batch_size=1, template=template)
    assert (found.ids, found.logprobs) == (whole.ids[:1], whole.logprobs[:1])
    assert (found.text, found.finish, found.end_id) == ("", "stop", None)


class OneSpecial(Numbers):
    """Numbers, of which one is the special token ``<|end|>``."""

    def __init__(self, special: int) -> None:
        super().__init__()
        self.special_ids = {"<|end|>": special}

    def decode(self, ids: Sequence[int]) -> str:
        return super().decode([token for token in ids if token not in self.special_ids.values()])


@pytest.mark.parametrize("stop", ["<|end|>", "<|end|>\n"])
def test_a_special_token_ends_a_text_with_or_without_blanks_behind(
    pair: tuple[Llama, LlamaForCausalLM], stop: str
) -> None:
    (free,) = generate(pair[0], [[3, 4]])
    loaded = LoadedModel(pair[0], OneSpecial(free.ids[2]), 128)  # type: ignore[arg-type]
    config = GenerationConfig(rules=GREEDY, max_new_tokens=12, stop=(stop,))
    (found,) = continue_prompts(loaded, [[3, 4]], config, batch_size=1)
    assert (found.ids, found.finish, found.end_id) == (free.ids[:2], "eos", free.ids[2])


@pytest.mark.parametrize("stop", ["<|end|> foo", "x<|end|>", "<|end|><|end|>"])
def test_a_stop_text_with_a_special_token_in_it_is_refused(pair: tuple[Llama, LlamaForCausalLM], stop: str) -> None:
    loaded = LoadedModel(pair[0], OneSpecial(5), 128)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"has the special token '<\|end\|>' in it.*give '<\|end\|>' alone"):
        continue_prompts(loaded, [[3, 4]], GenerationConfig(stop=(stop,)), batch_size=1)


def test_what_a_server_ended_before_there_was_no_room_has_stopped(pair: tuple[Llama, LlamaForCausalLM]) -> None:
    continuer = Continuer(load(pair[0], 5), GenerationConfig(max_new_tokens=4))
    finishes = {ids: continuer.finish([3], ids).finish for ids in ((1, 2), (1, 2, 3, 4), (1, 2, 5))}
    assert finishes == {(1, 2): "stop", (1, 2, 3, 4): "length", (1, 2, 5): "eos"}
