"""Streamed text is the whole text: never half a character, never the start of a stop text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mt_plugin_standard.tokenizers.byte import ByteConfig, build_byte
from mt_train.generation.text import TextStream, count_held_back, earliest

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
