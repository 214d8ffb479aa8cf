"""Differences of two texts, checked by what a browser would show of them: only the old words, only the new ones."""

from __future__ import annotations

import html
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from mt_tools.report.changes import MOST_WORDS, mark_changes

WORDS = st.lists(st.sampled_from(["the", "cat", " ", "\n", "<b>", "&amp;", "is", "'", "不", "."]), max_size=30).map(
    " ".join
)


def without(name: str, marked: str) -> str:
    return html.unescape(re.sub(r"</?(ins|del)>", "", re.sub(f"<{name}>.*?</{name}>", "", marked, flags=re.DOTALL)))


@settings(max_examples=200, deadline=None)
@given(WORDS, WORDS)
def test_what_is_marked_holds_both_texts_whole(before: str, after: str) -> None:
    marked = mark_changes(before, after)
    if marked is not None:
        assert without("del", marked) == after
        assert without("ins", marked) == before


def test_changes_are_of_whole_words_and_nothing_in_them_is_markup() -> None:
    marked = mark_changes("the cat sat on <b>", "the dog sat on <b> & now")
    assert marked == "the <del>cat </del><ins>dog </ins>sat on &lt;b<del>&gt;</del><ins>&gt; &amp; now</ins>"


def test_texts_with_hardly_a_word_in_common_or_too_many_words_are_not_compared() -> None:
    assert mark_changes("a cat sat here", "nobody ever saw any of it") is None
    assert mark_changes("word " * MOST_WORDS, "word " * MOST_WORDS) is not None
    assert mark_changes("word " * (MOST_WORDS + 1), "word") is None


def test_a_secret_is_hidden_before_it_is_cut_into_words() -> None:
    secret = "sk-" + "proj-" + "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH"
    marked = mark_changes(f"the key is {secret} here", f"the key is {secret} there")
    assert marked is not None
    assert "abcdefghijklmnop" not in marked
