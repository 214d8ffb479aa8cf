"""The text is always one of the choices, and the likeliest by transformers' account."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import LlamaForCausalLM
from twins import LatinTokenizer

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


class Spelled(LatinTokenizer):
    """Reads ``<|end|>`` as the end token, as most tokenizers read their special tokens."""

    def encode(self, text: str) -> list[int]:
        first, *others = (super(Spelled, self).encode(part) for part in text.split("<|end|>"))
        return [*first, *(token for part in others for token in (self.eos_id, *part))]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        ids, at, offsets = self.encode(text), 0, []
        for token in ids:
            offsets.append((at, at + (7 if token == self.eos_id else 1)))
            at = offsets[-1][1]
        return ids, offsets


@pytest.mark.parametrize("rules", [SamplingRules(greedy=True), SamplingRules(num_beams=2)])
@pytest.mark.parametrize("string", ["a<|end|>b", "<|end|>", "a<|end|>"])
def test_a_choice_with_an_end_token_in_it_is_refused(loaded: LoadedModel, string: str, rules: SamplingRules) -> None:
    spelled = LoadedModel(loaded.model, Spelled(), 128, (257,))
    with pytest.raises(UsageError) as refused:
        generate(spelled, "x", GenerationConfig(rules=rules, choices=("yes", string)))
    assert (
        str(refused.value)
        == f"the choice {string!r} has '<|end|>' in it, which ends a text; leave that out of the choice"
    )


def test_a_choice_with_another_token_that_ends_a_text_is_refused(loaded: LoadedModel) -> None:
    two_ends = LoadedModel(loaded.model, loaded.tokenizer, 128, (257, ord("!")))
    with pytest.raises(UsageError, match=r"the choice 'n!o' has '!' in it, which ends a text"):
        generate(two_ends, "x", GenerationConfig(choices=("yes", "n!o")))


def test_a_choice_with_the_stop_text_of_a_template_is_refused(loaded: LoadedModel) -> None:
    asked = [[{"role": "user", "content": "x"}]]
    for string in ("ab<|im_end|>q", "ab<|im_end|>"):
        config = GenerationConfig(choices=("yes", string))
        with pytest.raises(
            UsageError, match=r"the choice 'ab<\|im_end\|>q?' has '<\|im_end\|>' in it, which ends a text"
        ):
            generate(loaded, asked, config, chat_template="chatml")
        assert generate(loaded, "x", config)[0].text in config.choices, "without a template it is text like any other"


def test_a_stop_text_that_the_tokens_have_and_the_choice_has_not_is_found() -> None:
    class Lower(LatinTokenizer):
        def encode(self, text: str) -> list[int]:
            return super().encode(text.lower())

    with pytest.raises(UsageError, match="the choice 'aEOTb' has 'eot' in it"):
        Request(ids=[1], choices=Choices(["aEOTb"], Lower(), 257), stop=("eot",))


def test_a_row_that_ends_within_its_choice_is_an_error_of_that_row_alone(loaded: LoadedModel) -> None:
    decoder = Decoder(loaded, max_rows=2)
    short = decoder.add(Request(ids=[1], most=2, choices=Choices(["maybe"], loaded.tokenizer, 257), end_ids=(257,)))
    other = decoder.add(Request(ids=[1], most=4))
    produced = [each for _ in range(4) for each in decoder.step()]
    last = {each.number: each for each in produced if each.is_last}
    assert "none of the choices" in str(last[short].error)
    assert (last[short].finish, last[other].error) == (None, None)


class Unrowed(Spelled):
    """Reads ``<|end|>`` as a token behind all that the model has rows for, as Gemma 3 1B's tokenizer does an image."""

    eos_id = 259


@pytest.mark.parametrize("rules", [SamplingRules(greedy=True), SamplingRules(num_beams=2)])
def test_a_choice_with_a_token_that_has_no_row_is_refused(loaded: LoadedModel, rules: SamplingRules) -> None:
    unrowed = LoadedModel(loaded.model, Unrowed(), 128, (259, 257), vocabulary=259)
    with pytest.raises(
        UsageError, match=r"'<\|end\|>a' has '<\|end\|>' in it, token id 259, and the model's embedding 259 rows"
    ):
        generate(unrowed, "x", GenerationConfig(rules=rules, choices=("yes", "<|end|>a")))
    fine = GenerationConfig(rules=rules, choices=("yes", "no"))
    assert generate(unrowed, "x", fine) == generate(loaded, "x", fine), "they end with an end token that has a row"
    with pytest.raises(UsageError, match="no end token of the tokenizer has a row"):
        generate(LoadedModel(loaded.model, Unrowed(), 128, (259,), vocabulary=259), "x", fine)


@pytest.mark.parametrize("rules", [SamplingRules(greedy=True), SamplingRules(num_beams=3)])
def test_where_every_choice_would_be_a_repetition_the_model_chooses_all_the_same(
    loaded: LoadedModel, rules: SamplingRules
) -> None:
    prompts, choices = [f"{number}: a b c z" for number in range(12)], ("a", "b", "c", "z")
    barred = GenerationConfig(rules=replace(rules, no_repeat_ngram=1), choices=choices)
    found = [text.text for text in generate(loaded, prompts, barred)]
    assert found == [text.text for text in generate(loaded, prompts, GenerationConfig(rules=rules, choices=choices))]
    assert len(set(found)) > 1
