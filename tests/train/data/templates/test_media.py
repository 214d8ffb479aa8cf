"""Conversations with media, whose texts spell special tokens and marks of media: every part has its places, and all else stays text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mt_core import conversation
from mt_core.data.text_ids import continuation_encoder, text_encoder
from mt_core.media import MEDIA_MARK, Measured, MediaItem, MediaPart
from mt_train.config.data import DataConfig
from mt_train.data.media.marks import mark_parts
from mt_train.data.media.rules import MediaRules
from mt_train.data.media.writer import MediaSource, MediaTemplate, MediaWriter
from mt_train.data.templates import build_template
from mt_train.data.templates.plain import mark_encoders

RULES = MediaRules(kinds=frozenset({"dna", "image"}), roots=())
FILL = 3
PIECES = [
    "<dna>",
    "<image>",
    "<|im_end|>",
    "<|im_start|>assistant\n",
    "</s>",
    "<s>",
    "<think>",
    "<|eot_id|>",
    "a word",
    " ",
    "\n",
    "é",
]
text = st.lists(st.sampled_from(PIECES), max_size=5).map("".join)
part = st.text("ACGT", min_size=1, max_size=4).map(lambda letters: {"type": "dna", "dna": letters})
said = st.lists(st.one_of(text.map(lambda each: {"type": "text", "text": each}), part), min_size=1, max_size=4)


class Letters:
    """Each letter is a feature."""

    def measure(self, part: MediaPart) -> Measured:
        return Measured(len(part.content), None, part.content[:8])

    def read(self, item: MediaItem) -> Mapping[str, Any]:
        return {"letters": np.frombuffer(item.content, np.uint8)}

    def dummy(self) -> tuple[Measured, Mapping[str, Any]]:
        return Measured(1, None, b""), {"letters": np.zeros(1, np.uint8)}


def run_template(tokenizer: Any, name: str) -> MediaTemplate:
    inner = build_template(tokenizer, DataConfig(template=name, train_on="all"), media=True)
    source = MediaSource(name="letters", processor=Letters(), tokens=lambda features, grid: features, fill=FILL)
    encode = mark_encoders(text_encoder(tokenizer), continuation_encoder(tokenizer))[0]
    return MediaTemplate(inner, MediaWriter({"dna": source}), encode)


def turns_of(conversation: list[Any], places: list[str]) -> tuple[dict[str, Any], int]:
    """A row, with as many items as its texts have ``<dna>`` where there are ``places`` at all, and how many parts it has."""
    turns = [{"role": ("user", "assistant")[number % 2], "content": each} for number, each in enumerate(conversation)]
    spelled = json.dumps(turns).count("<dna>")
    parts = sum(each["type"] == "dna" for content in conversation for each in content)
    given = {"id": "a:1", "messages": turns}
    if places and spelled:
        return {**given, "dna": [places[number % len(places)] for number in range(spelled)]}, parts + spelled
    return given, parts


conversations = st.integers(1, 2).flatmap(lambda pairs: st.lists(said, min_size=2 * pairs, max_size=2 * pairs))
places = st.lists(st.text("ACGT", min_size=1, max_size=3), max_size=2)


@pytest.mark.parametrize("name", ["chatml", "llama3", "vicuna"])
@given(conversation_=conversations, places=places)
@settings(max_examples=30, deadline=None)
def test_every_part_has_its_places_and_no_spelled_token_is_one(
    tokenizers: dict[str, Any], name: str, conversation_: list[Any], places: list[str]
) -> None:
    """As many spans as parts, none of them trained, and the special tokens are those of the template alone."""
    row, count = turns_of(conversation_, places)
    marked, counted = mark_parts(row, RULES)
    assert counted == count
    turns = conversation(marked)
    tokenizer = tokenizers["huggingface"]
    template = run_template(tokenizer, name)
    encoded = template.encode(turns)
    said = [each.content for turn in turns for each in turn.get("media", ())]
    assert [span.item.content for span in encoded.media] == said
    assert len(encoded.media) == count
    held = {place for span in encoded.media for place in range(span.start, span.start + span.tokens)}
    assert len(held) == sum(map(len, said))
    assert all(encoded.ids[place] == FILL and not encoded.trained[place] for place in held)
    left = [token for place, token in enumerate(encoded.ids) if place not in held]
    plain = template.encode([{"role": turn["role"], "content": "x"} for turn in turns])
    silent = {token for token in plain.ids if not tokenizer.decode([token])}
    assert silent
    assert {token: left.count(token) for token in silent} == {token: plain.ids.count(token) for token in silent}


@given(conversation_=conversations, places=places)
@example(conversation_=[[{"type": "text", "text": each}] for each in ("", "  <|im_end|>")], places=[])
@settings(max_examples=30, deadline=None)
def test_ids_are_those_of_transformers_for_the_texts_between_parts(
    theirs: Any, tokenizers: dict[str, Any], conversation_: list[Any], places: list[str]
) -> None:
    """ChatML by hand: each piece of text as transformers encodes it, and what looks like a special token by itself, split."""
    row, _ = turns_of(conversation_, places)
    turns = conversation(mark_parts(row, RULES)[0])
    start, end = (theirs.convert_tokens_to_ids(each) for each in ("<|im_start|>", "<|im_end|>"))
    spelled = re.compile("(" + "|".join(re.escape(each.content) for each in theirs.added_tokens_decoder.values()) + ")")

    def encode(piece: str) -> list[int]:
        return [
            token
            for part in spelled.split(piece)
            for token in theirs.encode(part, add_special_tokens=False, split_special_tokens=True)
        ]

    expected: list[int] = []
    for turn in turns:
        first, *others = f"{turn['role']}\n{turn['content']}".split(MEDIA_MARK)
        expected += [start, *encode(first)]
        for piece, media in zip(others, turn.get("media", ()), strict=True):
            expected += [FILL] * len(media.content) + encode(piece)
        expected += [end, *encode("\n")]
    found = run_template(tokenizers["huggingface"], "chatml").encode(turns).ids
    begin = [theirs.bos_token_id] if found[0] == theirs.bos_token_id else []
    assert found == [*begin, *expected][: len(found)]
    assert len(found) >= len(begin) + len(expected) - 1, "the line behind the last turn alone may be left out"
