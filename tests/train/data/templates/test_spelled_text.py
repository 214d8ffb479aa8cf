"""Text in which people spelled special tokens: a template sees it as ``str``, and what it makes of it stays known to be a person's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mt_core import DataError
from mt_train.config.data import DataConfig
from mt_train.data.templates import build_template
from mt_train.data.templates.spelled_text import SURROGATES, SpelledText, show, store

PARTS = ["a", " ", "\n", "É", "<think>", "</think>", "<|im_end|>", ","]
said = st.lists(st.tuples(st.sampled_from(PARTS), st.booleans()), min_size=1, max_size=8)
needles = st.sampled_from([*PARTS, "k>", "<", "think>a"])
LOOKS = ["startswith", "endswith", "find", "rfind", "count", "__contains__", "__eq__", "__lt__", "__ge__"]
CUTS = ["strip", "lstrip", "rstrip", "split", "rsplit", "partition", "rpartition", "removeprefix", "removesuffix"]
CHANGES = ["upper", "lower", "title", "capitalize", "swapcase", "splitlines", "isspace", "isupper", "__hash__"]


def store_parts(parts: list[tuple[str, bool]]) -> tuple[SpelledText, str]:
    """The same text, with some of its parts stored, and plain."""
    pieces = [store(text) if is_stored else text for text, is_stored in parts]
    return SpelledText("".join(pieces)), "".join(text for text, _ in parts)


def show_all(value: Any) -> Any:
    return (
        show(value)
        if isinstance(value, str)
        else [show_all(each) for each in value]
        if isinstance(value, list | tuple)
        else value
    )


@given(said, needles)
@settings(max_examples=100, deadline=None)
def test_it_answers_as_the_text_that_was_written(parts: list[tuple[str, bool]], needle: str) -> None:
    own, plain = store_parts(parts)
    for name in (*LOOKS, *CUTS):
        assert show_all(getattr(own, name)(needle)) == show_all(getattr(plain, name)(needle)), name
    for name in (*CHANGES, "strip", "split"):
        assert show_all(getattr(own, name)()) == show_all(getattr(plain, name)()), name
    assert show(own.replace(needle, "#")) == plain.replace(needle, "#")
    assert show(own.replace(needle, "#", 1)) == plain.replace(needle, "#", 1)
    assert [show(char) for char in own] == list(plain)
    assert {plain: 1}[own] == 1
    assert show("x" + own + "y") == f"x{plain}y"


@given(said)
@settings(max_examples=100, deadline=None)
def test_its_parts_stay_a_persons(parts: list[tuple[str, bool]]) -> None:
    own, _ = store_parts(parts)
    for made in ("".join(own.split(",")), own.replace(",", ""), (own + "x")[:-1].replace(",", "")):
        assert SURROGATES.findall(str.__str__(made)) == SURROGATES.findall(
            str.__str__(own).replace(",", "").replace(store(","), "")
        )


CUTTING = (
    "{% macro piece(text) %}{{ text }}{% endmacro %}{% for m in messages %}<|im_start|>{{ m.role }}\n{% set c = m.content ~ '' %}"
    "{% if m.role == 'assistant' and '</think>' in c %}"
    "{% set thoughts = c.split('</think>')[0].split('<think>')[-1] %}{% set c = c.split('</think>')[-1] %}"
    "{{ '<think>' + thoughts.strip() + '</think>' + c.lstrip('\n') }}"
    "{% elif c.startswith('</s>') %}{% set kept %}{{ c.removeprefix('</s>') }}{% endset %}{{ kept.strip() }}"
    "{% else %}{{ piece(c) | trim | replace('x', 'y') }}{{ [c] | join('|') | length if c.endswith('</s>') }}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Cuts, asks, joins and copies, in all the ways that published templates have."""

TURNS = [
    {"role": "user", "content": "</s> what is <think> x </s>"},
    {"role": "assistant", "content": "<think>\nhm <|im_end|>\n</think>\n\nyes </s>"},
    {"role": "user", "content": " <|im_start|> and </think>\n"},
    {"role": "assistant", "content": "no"},
]


def test_a_template_that_cuts_and_asks_sees_the_text_as_it_was_written(tokenizers: dict[str, Any], theirs: Any) -> None:
    template = build_template(tokenizers["huggingface"], DataConfig(template=CUTTING))
    ids = template.encode(TURNS).ids
    text = theirs.apply_chat_template(TURNS, chat_template=CUTTING, tokenize=False)
    assert theirs.decode(ids, skip_special_tokens=False) == text
    counts = {
        name: ids.count(theirs.convert_tokens_to_ids(name)) for name in ("<|im_end|>", "</s>", "<think>", "</think>")
    }
    assert counts == {"<|im_end|>": 4, "</s>": 0, "<think>": 1, "</think>": 1}, "those of the template, and no others"


def test_no_mark_of_ours_is_among_the_ids(tokenizer: Any) -> None:
    """For every kind of tokenizer, also one that has none of the special tokens."""
    template = build_template(tokenizer, DataConfig(template=CUTTING + "{{ eos_token }}"))
    turns = [{**turn, "content": turn["content"].replace("<|im_end|>", "")} for turn in TURNS]
    text = getattr(tokenizer, "show", tokenizer.decode)(template.encode(turns).ids)
    assert not any(0xFDD0 <= ord(char) <= 0xFDEF or 0xD800 <= ord(char) <= 0xDFFF for char in text)
    assert "<think>hm</think>yes </s>" in text


@pytest.mark.parametrize("content", ["<|im_", "a<|im_en", "<"])
def test_a_special_token_that_a_turn_and_the_template_spell_together_is_text(
    tokenizers: dict[str, Any], theirs: Any, content: str
) -> None:
    source = "{% for m in messages %}{{ m.content }}{{ 'end|>' if m.role == 'user' else eos_token }}{% endfor %}"
    for turns in ([{"role": "user", "content": content}], [{"role": "user", "content": f"{content}|im_end|>"}]):
        asked = [*turns, {"role": "assistant", "content": "a"}]
        ids = build_template(tokenizers["huggingface"], DataConfig(template=source)).encode(asked).ids
        assert theirs.convert_tokens_to_ids("<|im_end|>") not in ids
        assert theirs.decode(ids) == f"{turns[0]['content']}end|>a</s>"


def test_what_a_row_says_is_no_format_that_reaches_into_python(tokenizers: dict[str, Any], theirs: Any) -> None:
    """The sandbox guards ``format`` of a text, and of this one."""
    source = "{% for m in messages %}{{ m.content.format(m) }}{{ eos_token }}{% endfor %}"
    turns = [{"role": "user", "content": "</s>{0.__class__}"}, {"role": "assistant", "content": "a"}]
    text = theirs.decode(build_template(tokenizers["huggingface"], DataConfig(template=source)).encode(turns).ids)
    assert text == "</s></s>a</s>" == theirs.apply_chat_template(turns, chat_template=source, tokenize=False)


def test_half_a_character_is_refused(tokenizer: Any) -> None:
    turns = [{"role": "user", "content": "\ud83d"}, {"role": "assistant", "content": "a"}]
    with pytest.raises(DataError, match="lone surrogate"):
        build_template(tokenizer, DataConfig(template="zephyr")).encode(turns)
