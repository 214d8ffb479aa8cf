"""Places of media in rows of runs without encoders."""

from __future__ import annotations

from typing import Any

import pytest

from mt_train.data.media.places import refuse_parts
from mt_train.data.media.rules import MediaError


def row(**fields: Any) -> dict[str, Any]:
    return {"id": "rows.jsonl:1", **fields}


def test_without_encoders_a_place_beside_its_items_is_refused_and_other_texts_are_read() -> None:
    for fields in ({"image": "a.png"}, {"images": ["a.png"]}, {"images": [{"bytes": b"", "path": "a.png"}]}):
        with pytest.raises(
            MediaError, match="1: field 'prompt' has a part of the kind 'image', and this run reads text"
        ):
            refuse_parts(row(prompt="<image> What is it?", response="A cat", **fields))
    with pytest.raises(MediaError, match="field 'text' has a part of the kind 'dna'"):
        refuse_parts(row(text="<dna> is a promoter", dna="ACGT"))
    refuse_parts(row(prompt="The tag <image> of SVG", response="draws one"))
    refuse_parts(row(prompt="The tag <image> of SVG", response="draws one", images=[]))
    refuse_parts(row(prompt="What is it?", response="A cat", images=["a.png"]))
