"""Marks among ids become places for media, whatever the template and the tokenizer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from mt_core import DataError
from mt_core.media import MEDIA_MARK, Measured, MediaItem, MediaPart
from mt_core.rows import Encoded
from mt_plugin_standard.tokenizers.byte import ByteTokenizer
from mt_train.config.data import DataConfig
from mt_train.data.media.writer import MediaSource, MediaTemplate, MediaWriter
from mt_train.data.templates import build_template
from mt_train.data.templates.notation import MEDIA_ID
from mt_train.data.templates.plain import mark_encoders


class Letters:
    """Each letter is a feature."""

    def measure(self, part: MediaPart) -> Measured:
        if not part.content.isalpha():
            raise DataError("no letters")
        return Measured(len(part.content), None, part.content[:8])

    def read(self, item: MediaItem) -> Mapping[str, Any]:
        return {"letters": np.frombuffer(item.content, np.uint8)}

    def dummy(self) -> tuple[Measured, Mapping[str, Any]]:
        return Measured(1, None, b""), {"letters": np.zeros(1, np.uint8)}


def source(**more: Any) -> MediaSource:
    return MediaSource(name="letters", processor=Letters(), tokens=lambda features, grid: features, fill=7, **more)


def part(letters: str) -> MediaPart:
    return MediaPart("dna", content=letters.encode(), place="a:1, turn 1")


def template(name: str = "chatml", **more: Any) -> MediaTemplate:
    tokenizer = ByteTokenizer()
    inner = build_template(tokenizer, DataConfig(template=name, train_on="all"), media=True)
    return MediaTemplate(
        inner, MediaWriter({"dna": source(**more)}), mark_encoders(tokenizer.encode, tokenizer.encode)[0]
    )


def turns(*texts: tuple[str, str, tuple[str, ...]]) -> list[dict[str, Any]]:
    return [{"role": role, "content": text, "media": tuple(map(part, media))} for role, text, media in texts]


ASKED = turns(
    ("user", f"{MEDIA_MARK}What?{MEDIA_MARK}", ("ACG", "TT")),
    ("assistant", "That.", ()),
    ("user", f"And{MEDIA_MARK}", ("A",)),
    ("assistant", "This.", ()),
)


@pytest.mark.parametrize("name", ["chatml", "plain", "llama3"])
def test_places_stand_where_the_parts_stood_and_nothing_else_changes(name: str) -> None:
    """Without the places, ids and trained tokens are those of the conversation without its parts."""
    encoded = template(name, begin=(5,), end=(6, 6)).encode(ASKED)
    assert [(span.tokens, span.item.content) for span in encoded.media] == [(3, b"ACG"), (2, b"TT"), (1, b"A")]
    for span in encoded.media:
        around = slice(span.start - 1, span.start + span.tokens + 2)
        assert encoded.ids[around] == [5, *[7] * span.tokens, 6, 6]
        assert not any(encoded.trained[around])
    gone = {place for span in encoded.media for place in range(span.start - 1, span.start + span.tokens + 2)}
    plain = build_template(ByteTokenizer(), DataConfig(template=name, train_on="all")).encode(
        [{"role": turn["role"], "content": turn["content"].replace(MEDIA_MARK, "")} for turn in ASKED]
    )
    kept = [place for place in range(len(encoded.ids)) if place not in gone]
    assert [encoded.ids[place] for place in kept] == plain.ids
    assert [encoded.trained[place] for place in kept] == plain.trained


def test_many_at_once_and_one_at_a_time_are_the_same() -> None:
    run = template()
    assert run.encode_many([ASKED, ASKED[:2]]) == [run.encode(ASKED), run.encode(ASKED[:2])]


def test_a_prompt_has_its_media_and_a_text_has_too() -> None:
    prompt = template().encode_prompt(ASKED[:1])
    assert [span.tokens for span in prompt.media] == [3, 2]
    assert not any(prompt.trained)
    text = template().encode_text(f"a{MEDIA_MARK}b", [part("ACGT")], begin=[1], end=[2])
    assert text.ids == [1, ord("a"), 7, 7, 7, 7, ord("b"), 2]
    assert text.trained == [True, True, False, False, False, False, True, True]


def test_places_weigh_1_in_a_turn_that_weighs_more() -> None:
    asked = turns(("user", "What?", ()), ("assistant", f"This: {MEDIA_MARK}.", ("AC",)))
    encoded = template(begin=(5,)).encode([asked[0], {**asked[1], "weight": 3.0}])
    (span,) = encoded.media
    assert encoded.weights is not None
    assert encoded.weights[span.start - 2 : span.start + 3] == [3.0, 1.0, 1.0, 1.0, 3.0]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (["ACG"], "has 1 parts that are no text, and the template has written 2 of them"),
        (["ACG", "12"], "a:1, turn 1: no letters"),
        (["ACG", "T", "A"], "has 3 parts"),
    ],
)
def test_parts_that_do_not_fit_are_refused(parts: list[str], message: str) -> None:
    writer = MediaWriter({"dna": source()})
    encoded = Encoded([1, MEDIA_ID, 2, MEDIA_ID], [True] * 4)
    with pytest.raises(DataError, match=message):
        writer.write(encoded, list(map(part, parts)))


def test_a_kind_that_nobody_reads_and_more_items_than_the_limit_are_refused() -> None:
    encoded = Encoded([MEDIA_ID, MEDIA_ID], [True] * 2)
    with pytest.raises(DataError, match="is of kind 'image', and the encoders of this run read dna"):
        MediaWriter({"dna": source()}).write(encoded, [dataclasses.replace(part("A"), kind="image"), part("C")])
    with pytest.raises(DataError, match=r"encoders\.letters\.limit is 1"):
        MediaWriter({"dna": source(limit=1)}).write(encoded, [part("A"), part("C")])


def test_a_mark_is_a_letter_like_any_other_in_a_run_without_encoders() -> None:
    tokenizer = ByteTokenizer()
    said = [{"role": "user", "content": MEDIA_MARK}, {"role": "assistant", "content": "Yes"}]
    ids = build_template(tokenizer, DataConfig(template="chatml")).encode(said).ids
    assert MEDIA_ID not in ids
    assert MEDIA_MARK in tokenizer.decode(ids)
