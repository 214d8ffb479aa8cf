"""Media lie beside the tokens, in memory and in the cache, and a sample is cut without cutting one."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mt_core import DataError, Rejected, Sample
from mt_core.media import MediaItem, MediaSpan
from mt_train.data.lengths import Lengths, fit
from mt_train.data.media.reader import MediaReader
from mt_train.data.samples import EncodedSamples

SPANS = (
    MediaSpan(2, 3, MediaItem("clip", "/a/ü b.png", b"", b"12345678"), 9, (1, 3, 3)),
    MediaSpan(6, 2, MediaItem("dna", "", b"AC\0GT", b"\0\1\0\1\0\1\0\1"), 5),
)
SAMPLE = Sample(list(range(12)), [False, True, *[False] * 7, True, True, True], "a:1", media=SPANS)


def samples(*each: Sample) -> EncodedSamples:
    found = EncodedSamples(reader=MediaReader({}))
    for sample in each:
        found.add(sample)
    return found


def test_what_is_kept_comes_back() -> None:
    plain = dataclasses.replace(SAMPLE, media=())
    found = samples(plain, SAMPLE, plain, SAMPLE)
    assert [tuple(each.media) for each in found] == [(), SPANS, (), SPANS]
    again = EncodedSamples(found.columns, found.report)
    assert again[3].media == SPANS


def test_another_content_is_another_fingerprint_and_another_folder_is_not() -> None:
    def print_of(**changes: Any) -> str:
        item = dataclasses.replace(SPANS[0].item, **changes)
        return str(
            samples(dataclasses.replace(SAMPLE, media=(dataclasses.replace(SPANS[0], item=item),))).fingerprint()[
                "sha256"
            ]
        )

    assert print_of() == print_of(path="/b/c.png")
    assert print_of() != print_of(digest=b"12345679")
    assert print_of() != print_of(encoder="siglip")


def test_text_alone_has_no_column_of_media() -> None:
    found = EncodedSamples()
    found.add(dataclasses.replace(SAMPLE, media=()))
    assert not [name for name in found.names if name.startswith("media")]


@pytest.mark.parametrize("truncation", ["left", "right", "middle"])
@pytest.mark.parametrize("limit", range(4, 12))
def test_a_cut_takes_an_item_as_a_whole_or_not_at_all(truncation: Any, limit: int) -> None:
    (cut,) = fit(SAMPLE, Lengths(max_len=limit, truncation=truncation)) or []
    assert not isinstance(cut, Rejected)
    assert len(cut.ids) <= limit
    left = [span.item.encoder for span in cut.media]
    for span, before in ((s, b) for s in cut.media for b in SPANS if b.item == s.item):
        places = slice(span.start, span.start + span.tokens)
        assert list(cut.ids[places]) == list(range(before.start, before.start + before.tokens))
    places_of_media = {place for span in SPANS for place in range(span.start, span.start + span.tokens)}
    assert sum(each in places_of_media for each in cut.ids) == sum(span.tokens for span in cut.media), left


def test_a_split_between_items_is_made_and_one_through_an_item_is_refused() -> None:
    sample = dataclasses.replace(SAMPLE, trained=[True] * 12, media=SPANS[:1])
    with pytest.raises(DataError, match="would cut media of 3 tokens at token 2"):
        fit(sample, Lengths(max_len=4, truncation="split"))
    pieces = fit(sample, Lengths(max_len=7, truncation="split"))
    assert not isinstance(pieces, Rejected)
    assert [tuple(each.media) for each in pieces] == [(SPANS[0],), ()]
