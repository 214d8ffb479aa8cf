"""Rows as items: two documents with one prompt, and only the answers trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mt_core import DataError, Encoded, Message, Rejected, Sample, Template
from mt_core.rows import MEDIA_MARK, MediaItem, MediaPart, MediaSpan
from mt_plugin_alignment.objectives.rows import encode_pair
from mt_plugin_alignment.objectives.shapes import EQUAL
from mt_plugin_standard.tokenizers.byte import ByteConfig, build_byte
from mt_train.config.data import DataConfig
from mt_train.data.templates import build_template

BYTES = build_byte(ByteConfig())
BOS, EOS = BYTES.bos_id, BYTES.eos_id
texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)


def template(**config: Any) -> Template:
    return build_template(BYTES, DataConfig(**config))


def encode(row: dict[str, Any], *, places: bool = False, **config: Any) -> Sample:
    found = encode_pair({"id": "rows:1", **row}, template(**config), places=places)
    assert isinstance(found, Sample), found
    return found


def sides(sample: Sample) -> list[tuple[list[int], list[bool]]]:
    cut = sample.documents[0]
    return [(list(sample.ids[:cut]), list(sample.trained[:cut])), (list(sample.ids[cut:]), list(sample.trained[cut:]))]


def trained_text(sample: Sample) -> list[str]:
    """The trained part of each side, its end token left out."""
    kept = [[token for token, on in zip(*side, strict=True) if on] for side in sides(sample)]
    assert all(each[-1] == EOS for each in kept), "an answer is trained on with its end"
    return [BYTES.decode(each[:-1]) for each in kept]


@given(texts, texts.filter(str.strip), texts.filter(str.strip))
def test_a_pair_is_its_prompt_twice_and_both_answers_with_their_ends(prompt: str, chosen: str, rejected: str) -> None:
    row = {"id": "rows:1", "prompt": prompt, "chosen": chosen, "rejected": rejected}
    found = encode_pair(row, template())
    if chosen == rejected:
        assert found == Rejected(EQUAL, "rows:1")
        return
    assert isinstance(found, Sample)
    for (ids, trained), answer in zip(sides(found), (chosen, rejected), strict=True):
        asked, said = [BOS, *prompt.encode()], [*answer.encode(), EOS]
        assert ids == [*asked, *said]
        assert trained == [False] * len(asked) + [True] * len(said)


def test_answers_that_are_different_images_are_no_duplicates() -> None:
    class Pictures:
        """Two places for each image, whose ids say nothing of it."""

        additions = ()

        def encode(self, messages: Sequence[Message]) -> Encoded:
            media = tuple(
                MediaSpan(1 + 2 * number, 2, MediaItem("clip", part.path), 2)
                for number, part in enumerate(part for turn in messages for part in turn.get("media", ()))
            )
            return Encoded([1] * (2 * len(media)) + [2, 2], [False] * (2 * len(media)) + [True, True], media=media)

    def pair(rejected: str) -> Sample | Rejected:
        answers = {
            name: [{"role": "assistant", "content": MEDIA_MARK, "media": (MediaPart("image", path),)}]
            for name, path in (("chosen", "a.png"), ("rejected", rejected))
        }
        return encode_pair({"id": "rows:1", "prompt": "q", **answers}, Pictures())  # type: ignore[arg-type]

    assert pair("a.png") == Rejected(EQUAL, "rows:1")
    found = pair("b.png")
    assert isinstance(found, Sample)
    assert [span.item.path for span in found.media] == ["a.png", "b.png"]


def test_an_answer_in_the_prompt_is_never_trained_on() -> None:
    turns = [{"role": role, "content": text} for role, text in (("user", "q"), ("assistant", "old"), ("user", "p"))]
    row = {"messages": turns, "chosen": "new", "rejected": "other"}
    for train_on in ("assistant", "last", "all"):
        assert trained_text(encode(row, template="plain", train_on=train_on)) == ["new", "other"]


@pytest.mark.parametrize("train_on", ["assistant", "last", "all"])
def test_what_a_run_adds_is_never_trained_on(train_on: str) -> None:
    """A system message, and words around a prompt, that the config puts there."""
    row = {"prompt": "q", "chosen": "yes", "rejected": "no"}
    added = {"system": "Be kind.", "prefix": "Q: ", "postfix": "\nA: "}
    found = encode(row, template="plain", train_on=train_on, **added)
    assert trained_text(found) == ["yes", "no"]
    prompts = [BYTES.decode(ids[1 : trained.index(True)]) for ids, trained in sides(found)]
    assert prompts == ["Be kind.Q: q\nA: "] * 2


@pytest.mark.parametrize("train_on", ["assistant", "all"])
def test_what_others_say_inside_an_answer_is_not_trained_on(train_on: str) -> None:
    inside = [{"role": role, "content": text} for role, text in (("assistant", "a"), ("user", "b"), ("assistant", "c"))]
    found = encode({"prompt": "q", "chosen": inside, "rejected": "x"}, template="plain", train_on=train_on)
    kept = [bytes(token for token, on in zip(*side, strict=True) if on and token < 256) for side in sides(found)]
    assert kept == [b"ac", b"x"]


def test_places_count_the_trained_tokens_of_each_answer() -> None:
    found = encode({"prompt": "q", "chosen": "abc", "rejected": "x"}, places=True)
    places = [place for place, on in zip(found.token_values["place"], found.trained, strict=True) if on]
    assert places == [0, 1, 2, 3, 0, 1]


def test_an_answer_that_may_not_be_trained_on_leaves_nothing() -> None:
    row = {
        "id": "rows:1",
        "prompt": "q",
        "chosen": {"role": "assistant", "content": "a", "train": False},
        "rejected": "b",
    }
    assert encode_pair(row, template(template="plain")) == Rejected("'chosen' has no token of its own", "rows:1")


def test_weights_of_turns_are_refused_as_pairs_have_none() -> None:
    row = {
        "id": "rows:1",
        "prompt": "q",
        "chosen": {"role": "assistant", "content": "a", "weight": 2.0},
        "rejected": "b",
    }
    with pytest.raises(DataError, match="rows:1: a turn of 'chosen' has a weight"):
        encode_pair(row, template(template="plain"))


class Merging:
    """A template whose tokens run from the prompt into the answer."""

    additions = ()

    def encode(self, turns: Any) -> Any:
        from mt_core import Encoded

        text = "".join(turn["content"] for turn in turns)
        begin = [1] if text.startswith("qa") else [2, 3]
        return Encoded([*begin, 9], [*([False] * len(begin)), True])


def test_a_prompt_in_other_tokens_on_one_side_is_refused() -> None:
    row = {"id": "rows:1", "prompt": "q", "chosen": "a", "rejected": "b"}
    with pytest.raises(
        DataError, match=r"rows:1: the template writes the prompt of the two sides in different tokens \(1 and 2\)"
    ):
        encode_pair(row, Merging())  # type: ignore[arg-type]


@pytest.mark.parametrize("train_on", ["assistant", "last", "all"])
def test_every_turn_of_an_answer_is_trained_on_whatever_train_on_says(train_on: str) -> None:
    turns = [("assistant", "which?"), ("user", "soup"), ("assistant", "here")]
    chosen = [{"role": role, "content": said} for role, said in turns]
    row = {"prompt": [{"role": "user", "content": "food"}], "chosen": chosen, "rejected": "no"}
    found = encode(row, template="chatml", train_on=train_on)
    kept = [bytes(token for token, on in zip(*side, strict=True) if on).decode() for side in sides(found)]
    assert kept == ["which?<|im_end|>here<|im_end|>", "no<|im_end|>"]
