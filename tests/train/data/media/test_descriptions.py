"""What people are told and shown of media, by processors that may know more or less of them."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from mt_core import DataError
from mt_core.rows import MediaItem, MediaSpan
from mt_train.data.media.reader import MOST_PICTURE_BYTES, MediaReader

SPAN = MediaSpan(start=3, tokens=4, item=MediaItem("eye", path="a/photo.jpg"), features=4)
PNG = b"\x89PNG\r\n\x1a\n and more"


class Eye:
    """A processor that describes items, and shows them."""

    def __init__(self, picture: bytes = PNG, fault: Exception | None = None) -> None:
        self.shown, self.fault = picture, fault

    def describe(self, item: MediaItem) -> str:
        if self.fault is not None:
            raise self.fault
        return "image 3×2"

    def thumbnail(self, item: MediaItem) -> bytes:
        self.describe(item)
        return self.shown


def reader(processor: Any) -> MediaReader:
    return MediaReader({"eye": processor})


def test_an_item_is_described_by_its_processor_or_by_the_encoder_that_reads_it() -> None:
    assert reader(Eye()).describe(SPAN) == "⟨image 3×2 → 4 tokens: a/photo.jpg⟩"
    for processor in (object(), Eye(fault=DataError("a/photo.jpg is gone"))):
        assert reader(processor).describe(SPAN) == "⟨eye → 4 tokens: a/photo.jpg⟩"


def test_a_picture_is_in_the_text_itself() -> None:
    start, _, content = reader(Eye()).picture(SPAN).partition(",")
    assert (start, base64.b64decode(content)) == ("data:image/png;base64", PNG)


@pytest.mark.parametrize(
    "processor",
    [object(), Eye(b"<svg onload=alert(1)>"), Eye(PNG + bytes(MOST_PICTURE_BYTES)), Eye(fault=DataError("gone"))],
    ids=["none", "no PNG", "too large", "gone"],
)
def test_what_is_no_small_picture_is_not_shown(processor: Any) -> None:
    assert reader(processor).picture(SPAN) == ""
