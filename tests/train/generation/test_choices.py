"""The text is always one of the choices, and the likeliest by transformers' account."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import LlamaForCausalLM

from mt_core.errors import UsageError
from mt_core.generation import GenerationConfig, SamplingRules
from mt_plugin_llama.model import Llama
from mt_plugin_standard.tokenizers.byte import ByteConfig, build_byte
from mt_tools.generation.generate import generate
from mt_train.generation.beams import search
from mt_train.generation.choices import Choices
from mt_train.generation.decoder import Decoder
from mt_train.generation.loaded_model import LoadedModel
from mt_train.generation.request import Request

END = 22
Pair = tuple[Llama, LlamaForCausalLM]


class Letters:
    """One token a letter, ``a`` is 0."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(ord("a") + number) for number in ids)


STRINGS = st.lists(st.text("abcdefgh", min_size=1, max_size=5), min_size=1, max_size=6, unique=True)


def test_a_string_that_begins_another_may_end_or_go_on() -> None:
    choices = Choices(["ab", "abc", "d"], Letters(), END)  # type: ignore[arg-type]
    assert sorted(choices.allowed_tokens([])) == [0, 3]
    assert sorted(choices.allowed_tokens([0, 1])) == [2, END]
    assert choices.allowed_tokens([0, 1, 2]) == [END]
    assert choices.allowed_tokens([7]) == [END], "off the trie nothing but an end is left"
    assert (choices.string([0, 1]), choices.string([0])) == ("ab", None)
    assert choices.longest == 4


@settings(max_examples=60, deadline=None)
@example(strings=["e", "aab"], prompt=[0], beams=2, early=True)  # fewer strings than beams
@given(
    strings=STRINGS,
    prompt=st.lists(st.integers(0, 21), min_size=1, max_size=4),
    beams=st.sampled_from([1, 2, 4]),
    early=st.booleans(),
)
def test_choices_equal_transformers_prefix_function(
    sharp_pair: Pair, strings: list[str], prompt: list[int], beams: int, early: bool
) -> None:
    choices = Choices(strings, Letters(), END)  # type: ignore[arg-type]
    early = early and beams > 1
    rules = SamplingRules(greedy=beams == 1, num_beams=beams, early_stopping=early)
    if beams == 1:
        decoder = Decoder(LoadedModel(sharp_pair[0], Letters(), 64, (END,)), max_rows=1)  # type: ignore[arg-type]
        decoder.add(Request(ids=prompt, most=6, rules=rules, end_ids=(END,), choices=choices))
        *found, end = [produced.token for _ in range(6) for produced in decoder.step()]
    else:
        text = search(sharp_pair[0], prompt, 6, rules=rules, end_ids=[END], choices=choices)
        found, end = text.tokens, text.end_id
    ids = torch.tensor([prompt])
    theirs = (
        sharp_pair[1]
        .generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            num_beams=beams,
            early_stopping=early,
            max_new_tokens=6,
            eos_token_id=END,
            pad_token_id=0,
            prefix_allowed_tokens_fn=lambda _, seen: choices.allowed_tokens(seen[len(prompt) :].tolist()),
        )[0, len(prompt) :]
        .tolist()
    )
    assert found == theirs[: theirs.index(END)]
    assert end == END


@settings(max_examples=20, deadline=None)
@given(
    strings=st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=5, unique=True).filter(
        lambda texts: all(letter < "\ud800" or letter > "\udfff" for text in texts for letter in text)
    ),
    rules=st.sampled_from(
        [
            SamplingRules(),
            SamplingRules(greedy=True),
            SamplingRules(num_beams=3),
            SamplingRules(temperature=5.0, no_repeat_ngram=1, min_new_tokens=20),
        ]
    ),
)
def test_the_text_is_always_one_of_the_choices(loaded: LoadedModel, strings: list[str], rules: SamplingRules) -> None:
    found = generate(loaded, ["a", "bcd"], GenerationConfig(rules=rules, choices=tuple(strings)))
    assert all(text.text in strings and text.finish == "eos" for text in found)


def test_choices_that_cannot_work_are_refused(loaded: LoadedModel) -> None:
    with pytest.raises(UsageError, match="longest choice has 6 tokens with its end, and max_new_tokens is 5"):
        generate(loaded, "x", GenerationConfig(choices=("yes", "maybe"), max_new_tokens=5))
    with pytest.raises(UsageError, match=r"prompt 1 .* shorten one of them"):
        generate(loaded, ["x", "x" * 124], GenerationConfig(choices=("maybe",)))
    with pytest.raises(UsageError, match="has no end token"):
        generate(LoadedModel(loaded.model, loaded.tokenizer, 128), "x", GenerationConfig(choices=("yes",)))
    with pytest.raises(UsageError, match="have the same tokens"):
        Choices(["a", "A"], type("Blind", (), {"encode": lambda self, text: [1]})(), END)
    with pytest.raises(UsageError, match="'' has no tokens"):
        Choices([""], build_byte(ByteConfig()), END)
