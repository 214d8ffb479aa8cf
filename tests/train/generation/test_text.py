"""Streamed text is the whole text: never half a character, never the start of a stop text."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tiny_tokenizers
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from mt_plugin_standard.tokenizers.byte import ByteConfig, build_byte
from mt_train.generation.text import CHARACTER, CONTEXT, WINDOW, TextStream, count_held_back, earliest

TOKENIZER = build_byte(ByteConfig())
SMALL = st.text("ab\né🙂", max_size=20)


def stream(text: str, stop: tuple[str, ...] = ()) -> tuple[list[str], str, bool]:
    """The pieces that were shown, the whole text, and whether it was stopped."""
    pieces: list[str] = []
    stream = TextStream(TOKENIZER, stop=stop, show=pieces.append)
    stopped = any(stream.push(token) for token in TOKENIZER.encode(text))
    return pieces, stream.close(), stopped


@given(text=SMALL)
def test_the_pieces_add_up_and_are_whole_characters(text: str) -> None:
    pieces, whole, stopped = stream(text)
    assert "".join(pieces) == whole == text
    assert not stopped
    assert not any("\ufffd" in piece or not piece for piece in pieces)


@given(text=SMALL, stop=st.lists(st.text("ab\né", min_size=1, max_size=3), min_size=1, max_size=3))
def test_a_text_ends_before_the_first_stop_text_and_shows_nothing_of_it(text: str, stop: list[str]) -> None:
    pieces, whole, stopped = stream(text, tuple(stop))
    # as it grows, the text ends with the first character that completes a stop text
    grown = next((text[:end] for end in range(len(text) + 1) if earliest(text[:end], stop) is not None), None)
    assert stopped == (grown is not None)
    assert whole == (text if grown is None else grown[: earliest(grown, stop)])
    assert "".join(pieces) == whole


def test_a_piece_is_shown_as_soon_as_no_stop_text_can_begin_in_it() -> None:
    pieces, _, _ = stream("one\n\nUser", ("\n\nUser:",))
    assert pieces == ["o", "n", "e", "\n\nUser"]


def test_held_back_is_the_longest_end_that_begins_a_stop_text() -> None:
    assert count_held_back("x<|e", ["<|end|>", "|>"]) == 3
    assert count_held_back("<|end|>"[:-1], ["<|end|>"]) == 6
    assert count_held_back("abc", ["<|end|>"]) == 0
    assert count_held_back("abc", []) == 0


def test_without_an_onlooker_the_text_is_decoded_once() -> None:
    calls = 0

    class Counting:
        def decode(self, ids: list[int]) -> str:
            nonlocal calls
            calls += 1
            return TOKENIZER.decode(ids)

    stream = TextStream(Counting())  # type: ignore[arg-type]
    for token in TOKENIZER.encode("naïve"):
        stream.push(token)
    assert stream.close() == "naïve"
    assert calls == 1


WORDS = ["the", " fox", "  ", " ", "\n", "東京", "中", "é", "🙂", "👩‍👩‍👧", "🇩🇪", " naïve", "x", " ▁", "'s", "."]


def byte_level() -> tokenizers.Tokenizer:
    """As GPT-2: tokens are bytes, and a character may be several."""
    found = tokenizers.Tokenizer(models.BPE())
    found.pre_tokenizer, found.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=280, initial_alphabet=alphabet, special_tokens=["<s>"], show_progress=False
    )
    found.train_from_iterator([" the fox 東京"] * 9, trainer)
    return found


def metaspace() -> tokenizers.Tokenizer:
    return tiny_tokenizers.metaspace(["▁the", "▁fox", "▁n", *"thefox'.sanïv東"])


def word_pieces() -> tokenizers.Tokenizer:
    return tiny_tokenizers.word_pieces(["the", "fox", "x", "##x", ".", "s", "'", "東", "##京", "é"])


class Counting:
    """One of them with the methods of ours; counts the tokens that it decodes."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        self.inner, self.decoded = inner, 0

    def decode(self, ids: list[int]) -> str:
        self.decoded += len(ids)
        return self.inner.decode(list(ids), skip_special_tokens=True)


def pieces_of_the_whole(tokenizer: Counting, ids: list[int]) -> list[str]:
    """What a stream shows where all is decoded anew for each token."""
    found, shown = [], 0
    for count in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:count])
        if not text.endswith("\ufffd") and len(text) > shown:
            found.append(text[shown:])
            shown = len(text)
    return found


@pytest.mark.parametrize("build", [byte_level, metaspace, word_pieces])
def test_a_window_of_tokens_decodes_as_all_of_them_do(build: Callable[[], tokenizers.Tokenizer]) -> None:
    """Random words and special tokens in any order: each piece is the one that decoding all anew for every token gives."""
    tokenizer = Counting(build())

    @settings(max_examples=15, deadline=None)
    @given(words=st.lists(st.sampled_from([*WORDS, "<s>", "<s>" * 20, " " * 20]), min_size=40, max_size=120))
    def check(words: list[str]) -> None:
        ids = tokenizer.inner.encode("".join(words), add_special_tokens=False).ids
        shown: list[str] = []
        stream = TextStream(tokenizer, show=shown.append)  # type: ignore[arg-type]
        for token in ids:
            stream.push(token)
        assert shown == pieces_of_the_whole(tokenizer, ids)
        assert stream.close() == tokenizer.decode(ids)

    check()


@pytest.mark.parametrize("build", [byte_level, metaspace, word_pieces])
@pytest.mark.parametrize("shows", [True, False])
def test_a_text_goes_on_in_the_text_of_the_tokens_before(
    build: Callable[[], tokenizers.Tokenizer], shows: bool
) -> None:
    """Both together are what all tokens decode to, a blank between them included."""
    tokenizer = Counting(build())

    @settings(max_examples=25, deadline=None)
    @given(words=st.lists(st.sampled_from([*WORDS, "<s>", " " * 20]), min_size=1, max_size=120), share=st.floats(0, 1))
    def check(words: list[str], share: float) -> None:
        ids = tokenizer.inner.encode("".join(words), add_special_tokens=False).ids
        cut = int(len(ids) * share)
        shown: list[str] = []
        show = shown.append if shows else None
        stream = TextStream(tokenizer, show=show, after=ids[:cut])  # type: ignore[arg-type]
        for token in ids[cut:]:
            stream.push(token)
        before = tokenizer.decode(ids[:cut])
        whole = stream.close()
        assert before.endswith("\ufffd") or before + whole == tokenizer.decode(ids)
        assert not shows or "".join(shown) == whole

    check()


@pytest.mark.parametrize("build", [byte_level, metaspace, word_pieces])
@pytest.mark.parametrize("stop", [(), ("fox fox", "東京東京東京")])
def test_streaming_a_text_is_linear_in_its_length(
    build: Callable[[], tokenizers.Tokenizer], stop: tuple[str, ...]
) -> None:
    tokenizer = Counting(build())
    ids = tokenizer.inner.encode("the fox 東京 x. " * 300, add_special_tokens=False).ids
    tokenizer.decoded = 0
    stream = TextStream(tokenizer, stop=stop, show=lambda piece: None)  # type: ignore[arg-type]
    assert not any(stream.push(token) for token in ids)
    assert tokenizer.decoded <= len(ids) * 2 * (WINDOW + CHARACTER * CONTEXT)


def test_a_stop_text_longer_than_a_window_is_never_shown() -> None:
    stop = "ab" * WINDOW
    pieces, whole, stopped = stream(f"x{stop[:-1]}yé{stop}z", (stop,))
    assert (whole, stopped) == (f"x{stop[:-1]}yé", True)
    assert "".join(pieces) == whole
