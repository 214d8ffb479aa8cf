"""Rows of every documented form: parts become marks with what they stand for beside them, in the order of the conversation."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mt_core import conversation, preference
from mt_core.data.media_parts import MEDIA_FIELDS, media_of
from mt_core.errors import DataError
from mt_core.rows import MEDIA_MARK as M
from mt_core.rows import MediaPart
from mt_train.data.media.marks import _ALTERNATIVES, mark_parts
from mt_train.data.media.rules import COUNT, MARK, SHAPE, UNREAD, MediaError, MediaRules
from mt_train.data.texts import texts_in

PIXELS = b"\x89PNG not read here"
URI = "data:image/png;base64," + b64encode(PIXELS).decode()
KINDS = frozenset({"image", "audio", "dna", "protein"})
NAMES = ("a.png", "b.png", "c.png", "d.wav")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    for name in NAMES:
        (folder / name).write_bytes(name.encode())
    return folder


@pytest.fixture(scope="module")
def rules(folder: Path) -> MediaRules:
    return MediaRules(kinds=KINDS, roots=(folder,))


def row(**fields: Any) -> dict[str, Any]:
    return {"id": "rows.jsonl:1", **fields}


def names(media: Any) -> list[str]:
    """Names of files, or content, of parts."""
    assert all(isinstance(part, MediaPart) for part in media)
    return [Path(part.path).name if part.path else part.content.decode("latin-1") for part in media]


def told(messages: Any) -> list[tuple[str, str, list[str]]]:
    return [(turn["role"], turn["content"], names(turn.get("media", ()))) for turn in messages]


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


TEXT = {"type": "text", "text": " what?"}
ANSWER = {"role": "assistant", "content": "r"}
ANSWERED = ("assistant", "r", [])
ASKED = ("user", f"{M} what?", ["a.png"])

CONTENT_PARTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "openai, a path": ({"type": "image_url", "image_url": {"url": "a.png", "detail": "low"}}, ["a.png"]),
    "openai, a data: URI": ({"type": "image_url", "image_url": {"url": URI}}, [PIXELS.decode("latin-1")]),
    "openai, responses": ({"type": "input_image", "image_url": URI}, [PIXELS.decode("latin-1")]),
    "hugging face, image": ({"type": "image", "image": "a.png"}, ["a.png"]),
    "hugging face, path": ({"type": "image", "path": "a.png"}, ["a.png"]),
    "hugging face, url of a file": ({"type": "image", "url": "a.png", "text": None}, ["a.png"]),
    "hugging face, bytes": ({"type": "image", "image": {"bytes": PIXELS, "path": "x"}}, [PIXELS.decode("latin-1")]),
    "parquet, no bytes": ({"type": "image", "image": {"bytes": None, "path": "a.png"}}, ["a.png"]),
    "anthropic": (
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": b64encode(PIXELS).decode()}},
        [PIXELS.decode("latin-1")],
    ),
    "openai, sound": (
        {"type": "input_audio", "input_audio": {"data": b64encode(b"RIFF").decode(), "format": "wav"}},
        ["RIFF"],
    ),
    "sound": ({"type": "audio", "audio": "d.wav"}, ["d.wav"]),
    "sound, url": ({"type": "audio", "audio_url": "d.wav"}, ["d.wav"]),
    "dna": ({"type": "dna", "dna": "ACGT"}, ["ACGT"]),
    "dna in lines": ({"type": "dna", "dna": "ACGT\nTT\n"}, ["ACGTTT"]),
    "protein": ({"type": "protein", "protein": "MKV"}, ["MKV"]),
    "protein, sequence": ({"type": "protein", "sequence": "MKV"}, ["MKV"]),
    "dna in a file": ({"type": "dna", "path": "a.png"}, ["a.png"]),
}


@pytest.mark.parametrize("name", CONTENT_PARTS)
def test_content_parts_become_marks(rules: MediaRules, name: str) -> None:
    part, media = CONTENT_PARTS[name]
    marked, count = mark_parts(row(messages=[user(part, TEXT), ANSWER]), rules)
    assert told(conversation(marked)) == [("user", f"{M} what?", media), ANSWERED]
    assert count == 1
    assert marked["messages"][0]["media"][0].kind == re.sub("_url|input_", "", part["type"])


TURNS = [{"from": "human", "value": "<image> what?"}, {"from": "gpt", "value": "r"}]
MESSAGES = [{"role": "user", "content": "<image> what?"}, ANSWER]
SPELLED: dict[str, tuple[dict[str, Any], list[tuple[str, str, list[str]]]]] = {
    "LLaVA": ({"conversations": TURNS, "image": "a.png"}, [ASKED, ANSWERED]),
    "ShareGPT": ({"conversations": TURNS, "images": ["a.png"]}, [ASKED, ANSWERED]),
    "LLaMA-Factory": ({"messages": MESSAGES, "images": ["a.png"], "audios": None, "videos": []}, [ASKED, ANSWERED]),
    "Parquet": (
        {"messages": MESSAGES, "images": [{"bytes": b"x", "path": "n.png"}]},
        [("user", f"{M} what?", ["x"]), ANSWERED],
    ),
    "a tuple": ({"messages": MESSAGES, "images": ("a.png",)}, [ASKED, ANSWERED]),
    "TRL, places without content": (
        {
            "messages": [user({"type": "image"}, TEXT, {"type": "image", "image": None}), ANSWER],
            "images": ["a.png", "b.png"],
        },
        [("user", f"{M} what?{M}", ["a.png", "b.png"]), ANSWERED],
    ),
    "a content part that spells one": (
        {
            "messages": [user({"type": "text", "text": "<image>"}, {"type": "image"}), ANSWER],
            "images": ["a.png", "b.png"],
        },
        [("user", f"{M}{M}", ["a.png", "b.png"]), ANSWERED],
    ),
    "own content takes nothing of the field": (
        {"messages": [user({"type": "image", "path": "c.png"}, {"type": "image"}), ANSWER], "images": ["a.png"]},
        [("user", f"{M}{M}", ["c.png", "a.png"]), ANSWERED],
    ),
    "prompt, response": (
        {"response": "r <image>", "prompt": "q <image>", "images": ["a.png", "b.png"]},
        [("user", f"q {M}", ["a.png"]), ("assistant", f"r {M}", ["b.png"])],
    ),
    "system and history": (
        {
            "prompt": "<image>",
            "response": "r",
            "system": "s <image>",
            "history": [["<image> h", "x"], ["y", "z"]],
            "images": ["a.png", "b.png", "c.png"],
        },
        [
            ("system", f"s {M}", ["a.png"]),
            ("user", f"{M} h", ["b.png"]),
            ("assistant", "x", []),
            ("user", "y", []),
            ("assistant", "z", []),
            ("user", M, ["c.png"]),
            ANSWERED,
        ],
    ),
    "Alpaca": (
        {
            "instruction": "<dna> q",
            "input": "<image>",
            "output": "<image> r",
            "dna": "ACGT",
            "images": ["a.png", "b.png"],
        },
        [("user", f"{M} q\n{M}", ["ACGT", "a.png"]), ("assistant", f"{M} r", ["b.png"])],
    ),
    "Alpaca, empty input": (
        {"instruction": "<image>", "input": "", "output": "r", "image": "a.png"},
        [("user", M, ["a.png"]), ANSWERED],
    ),
    "choices": (
        {"prompt": "<image>?", "choices": ["<image>", "no"], "answer": 1, "images": ["a.png", "b.png"]},
        [("user", f"{M}?\nA. {M}\nB. no\nAnswer:", ["a.png", "b.png"]), ("assistant", " B", [])],
    ),
    "choices that the prompt has already": (
        {
            "prompt": "<image>? A. <image>",
            "choices": ["<image>", "no"],
            "answer": 0,
            "response": "r",
            "images": ["a.png", "b.png"],
        },
        [("user", f"{M}? A. {M}", ["a.png", "b.png"]), ANSWERED],
    ),
    "answers with scores": (
        {
            "prompt": "<image>",
            "answers": [{"text": "r", "score": 2}, {"text": "<image>", "score": 1}],
            "image": "a.png",
        },
        [("user", M, ["a.png"]), ANSWERED],
    ),
    "several kinds": (
        {"prompt": "<protein><dna><audio>", "response": "r", "protein": "MK", "dna": ["AC"], "audios": ["d.wav"]},
        [("user", M * 3, ["MK", "AC", "d.wav"]), ANSWERED],
    ),
    "a row with a text of it beside it": (
        {"text": "<image> q r", "prompt": "<image> q", "response": "r", "image": "a.png"},
        [("user", f"{M} q", ["a.png"]), ANSWERED],
    ),
    "other fields": (
        {"prompt": "<image>", "response": "r", "image": "a.png", "media": "news", "audio": None, "source": 3},
        [("user", M, ["a.png"]), ANSWERED],
    ),
}


@pytest.mark.parametrize("name", SPELLED)
def test_items_of_a_field_take_the_places_in_the_order_of_the_conversation(rules: MediaRules, name: str) -> None:
    fields, expected = SPELLED[name]
    marked, count = mark_parts(row(**fields), rules)
    assert told(conversation(marked)) == expected
    assert count == sum(len(media) for *_, media in expected)


def test_pretraining_texts_have_their_parts_in_the_row(rules: MediaRules) -> None:
    marked, count = mark_parts(row(text="one <image> two <image>", images=["b.png", "a.png"]), rules)
    assert (marked["text"], names(marked["media"]), count) == (f"one {M} two {M}", ["b.png", "a.png"], 2)
    assert media_of(marked, "text") == {"media": marked["media"]}
    assert "images" not in marked


QUESTION = {"role": "user", "content": "<image> which?"}
PAIRS: dict[str, dict[str, Any]] = {
    "a prompt and texts": {"prompt": "<image> which?", "chosen": "good", "rejected": "bad"},
    "messages, and a turn each": {
        "messages": [QUESTION],
        "chosen": {"role": "assistant", "content": "good"},
        "rejected": "bad",
    },
    "LLaMA-Factory": {
        "conversations": [{"from": "human", "value": "<image> which?"}],
        "chosen": {"from": "gpt", "value": "good"},
        "rejected": {"from": "gpt", "value": "bad"},
    },
    "both sides begin with the prompt": {
        "chosen": [QUESTION, {"role": "assistant", "content": "good"}],
        "rejected": [QUESTION, {"role": "assistant", "content": "bad"}],
    },
    "both sides repeat the prompt": {
        "prompt": [QUESTION],
        "chosen": [QUESTION, {"role": "assistant", "content": "good"}],
        "rejected": [QUESTION, {"role": "assistant", "content": "bad"}],
    },
    "content parts with content on both sides": {
        "image": None,
        "chosen": [
            user({"type": "image", "path": "a.png"}, {"type": "text", "text": " which?"}),
            {**ANSWER, "content": "good"},
        ],
        "rejected": [
            user({"type": "image", "path": "a.png"}, {"type": "text", "text": " which?"}),
            {**ANSWER, "content": "bad"},
        ],
    },
}


@pytest.mark.parametrize("name", PAIRS)
def test_both_sides_of_a_pair_answer_the_same_image(rules: MediaRules, name: str) -> None:
    marked, _ = mark_parts(row(**{"images": ["a.png"] if "image" not in PAIRS[name] else None, **PAIRS[name]}), rules)
    prompt, chosen, rejected = preference(marked)
    assert told(prompt) == [("user", f"{M} which?", ["a.png"])]
    assert told(chosen) == [("assistant", "good", [])]
    assert told(rejected) == [("assistant", "bad", [])]


def test_answers_of_a_pair_have_images_of_their_own(rules: MediaRules) -> None:
    fields = {
        "rejected": "bad <image>",
        "chosen": "good <image>",
        "prompt": "<image>",
        "images": ["a.png", "b.png", "c.png"],
    }
    marked, count = mark_parts(row(**fields), rules)
    assert [told(turns)[0][2] for turns in preference(marked)] == [["a.png"], ["b.png"], ["c.png"]]
    assert count == 3


def test_sides_that_show_different_images_part_at_these(rules: MediaRules) -> None:
    sides = {
        side: [user({"type": "image", "path": path}), {**ANSWER, "content": side}]
        for side, path in (("chosen", "a.png"), ("rejected", "b.png"))
    }
    prompt, chosen, rejected = preference(mark_parts(row(**sides), rules)[0])
    assert (prompt, len(chosen), len(rejected)) == ([], 2, 2)


def test_a_prompt_that_shows_another_image_is_not_repeated(rules: MediaRules) -> None:
    sides = {
        side: [user({"type": "image", "path": "b.png"}), {**ANSWER, "content": side}] for side in ("chosen", "rejected")
    }
    prompt, *_ = preference(mark_parts(row(prompt=[user({"type": "image", "path": "a.png"})], **sides), rules)[0])
    assert [names(turn["media"]) for turn in prompt] == [["a.png"], ["b.png"]]


def test_pairs_of_openai_have_their_parts(rules: MediaRules) -> None:
    fields = {
        "input": {"messages": [user({"type": "image_url", "image_url": {"url": "a.png"}})]},
        "preferred_output": [ANSWER],
    }
    marked, count = mark_parts(row(**fields, non_preferred_output=[ANSWER]), rules)
    assert told(marked["input"]["messages"]) == [("user", M, ["a.png"])]
    assert count == 1


UNTOUCHED: dict[str, dict[str, Any]] = {
    "no field": {"prompt": "what does <image> mean?", "response": "a <dna>"},
    "a field that is null": {"prompt": "<image>", "response": "r", "images": None},
    "text parts": {"messages": [user(TEXT, TEXT), ANSWER]},
    "an empty field": {"prompt": "q", "response": "r", "images": []},
    "a field of a kind that nobody reads and no text has": {"prompt": "q", "response": "r", "video": "a.mp4"},
    "a history": {"prompt": "q", "response": "r", "history": [["a", "b"]]},
    "ids": {"input_ids": [1, 2, 3]},
    "no shape at all": {"prompt": 3, "messages": [1, None], "history": [["a"]], "chosen": [["x"]], "choices": [2]},
    "a call": {"conversations": [{"from": "function_call", "value": '{"name": "<image>"}'}], "images": []},
}


@pytest.mark.parametrize("name", UNTOUCHED)
def test_rows_without_parts_are_the_very_same(rules: MediaRules, name: str) -> None:
    given_row = row(**UNTOUCHED[name])
    marked, count = mark_parts(given_row, rules)
    assert marked is given_row
    assert count == 0


BAD: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "more items than places": (
        {"prompt": "<image>", "response": "r", "images": ["a.png", "b.png"]},
        COUNT,
        ("field 'images' has 2 items", "1 place "),
    ),
    "more places than items": (
        {"prompt": "<image><image><image>", "response": "r", "images": ["a.png"]},
        COUNT,
        ("field 'images' has 1 item,", "3 places"),
    ),
    "no place": ({"prompt": "q", "response": "r", "image": "a.png"}, COUNT, ("1 item,", "0 places")),
    "no item": ({"prompt": "<image>", "response": "r", "images": []}, COUNT, ("0 items", "1 place")),
    "two fields": (
        {"prompt": "<image>", "response": "r", "image": "a.png", "images": ["b.png"]},
        COUNT,
        ("'image'", "'images'"),
    ),
    "a place without content or field": (
        {"messages": [user({"type": "image"}), ANSWER]},
        SHAPE,
        ("turn 1, part 1", "'images'"),
    ),
    "a kind that nobody reads": (
        {"messages": [user({"type": "video", "path": "a.png"}), ANSWER]},
        UNREAD,
        ("'video'", "text, audio, dna, image, protein", "--encoders"),
    ),
    "a kind that nobody reads, in a text": (
        {"prompt": "<video>", "response": "r", "videos": ["a.png"]},
        UNREAD,
        ("field 'prompt'", "'video'"),
    ),
    "an unknown type": ({"messages": [user({"type": "refusal", "refusal": "no"}), ANSWER]}, SHAPE, ("'refusal'",)),
    "a number as a part": ({"messages": [user(7), ANSWER]}, SHAPE, ("turn 1, part 1", "7")),
    "the mark in a turn": ({"messages": [{"role": "user", "content": f"a{M}"}, ANSWER]}, MARK, ("U+FDD5",)),
    "the mark in a tool": ({"messages": MESSAGES, "tools": [{"name": M}], "images": ["a.png"]}, MARK, ("U+FDD5",)),
    "a number as an image": (
        {"prompt": "<image>", "response": "r", "images": [5]},
        SHAPE,
        ("field 'images', number 1", "5"),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_rows_have_one_message_that_begins_with_their_place(rules: MediaRules, name: str) -> None:
    fields, kind, says = BAD[name]
    with pytest.raises(MediaError) as caught:
        mark_parts(row(**fields), rules)
    assert str(caught.value).startswith("rows.jsonl:1: ")
    assert all(text in str(caught.value) for text in says), caught.value
    assert caught.value.kind == kind


def test_what_a_file_says_under_the_name_media_is_no_part(rules: MediaRules) -> None:
    fields = {
        "messages": [{"role": "user", "content": "q", "media": [{"kind": "image", "path": "/etc/passwd"}]}, ANSWER]
    }
    for media in ("x", ["a.png"], ({"kind": "image"},), ()):
        plain = row(**fields, media=media)
        assert mark_parts(plain, rules)[0] is plain
        assert conversation(plain)[0] == {"role": "user", "content": "q"}
        assert media_of(row(prompt=M, media=media), "prompt") == {}


def test_a_kind_that_a_plugin_brings_is_read_like_those_that_are_known(folder: Path) -> None:
    rules = MediaRules(kinds=frozenset({"smiles"}), roots=(folder,))
    marked, _ = mark_parts(row(prompt="<smiles>", response="r", smiles="CCO"), rules)
    assert marked["media"] == (MediaPart("smiles", content=b"CCO"),)


def test_the_order_of_texts_is_the_order_of_the_row_s_media() -> None:
    walked = [name for names in _ALTERNATIVES for name in names]
    assert [name for name in walked if name in MEDIA_FIELDS] == list(MEDIA_FIELDS)


SPECIAL = (
    "<image>",
    "<dna>",
    "<|im_end|>",
    "</s>",
    "<s>",
    "[IMG]",
    "<image",
    "image>",
    "<<image>>",
    " ",
    "a",
    "é",
    "\n",
)
texts = st.lists(st.sampled_from(SPECIAL), max_size=6).map("".join)
content = st.one_of(texts, st.lists(st.one_of(texts, st.sampled_from(["image", "own", "dna"])), min_size=1, max_size=4))


def as_parts(said: Any) -> Any:
    if isinstance(said, str):
        return said
    known = {"image": {"type": "image"}, "own": {"type": "image", "path": "c.png"}, "dna": {"type": "dna", "dna": "GG"}}
    return [known.get(each, {"type": "text", "text": each}) for each in said]


@given(said=st.lists(st.tuples(content, content), min_size=1, max_size=4), offered=st.booleans())
def test_counts_agree_and_nothing_is_lost_whatever_texts_spell(rules: MediaRules, said: Any, offered: bool) -> None:
    turns = [
        {"role": role, "content": as_parts(each)}
        for pair in said
        for role, each in zip(("user", "assistant"), pair, strict=True)
    ]
    asked = json.dumps(turns)
    places = asked.count("<image>") + asked.count('{"type": "image"}')
    fields = {"messages": turns, **({"images": [NAMES[number % 3] for number in range(places)]} if offered else {})}
    if not offered and '{"type": "image"}' in asked:
        with pytest.raises(DataError, match="no content"):
            mark_parts(row(**fields), rules)
        return
    marked, count = mark_parts(row(**fields), rules)
    found = conversation(marked)
    media = [part for turn in found for part in turn.get("media", ())]
    own = asked.count('"c.png"') + asked.count('"GG"')
    assert count == len(media) == "".join(turn["content"] for turn in found).count(M) == own + places * offered
    for turn, before in zip(found, turns, strict=True):
        assert turn["content"].count(M) == len(turn.get("media", ()))
        flat = (
            before["content"]
            if isinstance(before["content"], str)
            else "".join(each.get("text", M) for each in before["content"])
        )
        assert turn["content"] == (flat.replace("<image>", M) if offered else flat)
    taken = [Path(part.path).name for part in media if part.path and not part.path.endswith("c.png")]
    expected = [NAMES[number % 3] for number in range(places * offered) if number % 3 < 2]
    assert taken == expected


FOUND = {"dna": re.compile(r"<seq>([ACGTacgt\s]*)</seq>"), "image": re.compile(r"!\[[^\]]*\]\(([^)]*)\)")}


@pytest.fixture(scope="module")
def finding(rules: MediaRules) -> MediaRules:
    """Rules that find sequences between tags, and pictures as Markdown has them."""
    return replace(rules, patterns=FOUND)


def test_what_patterns_find_in_any_text_is_media_in_its_place(finding: MediaRules) -> None:
    found, count = mark_parts(
        row(
            prompt="Is <seq>AC GT</seq> like <dna>, or ![a cat](b.png) like <image>?",
            response="<seq>GG</seq> is, <sequence>A</sequence> is not",
            dna="TTT",
            image="a.png",
        ),
        finding,
    )
    assert (found["prompt"], found["response"]) == (
        f"Is {M} like {M}, or {M} like {M}?",
        f"{M} is, <sequence>A</sequence> is not",
    )
    assert names(found["media"]) == ["ACGT", "TTT", "b.png", "a.png", "GG"]
    assert count == 5
    turns = [
        user("<seq>A</seq>", {"type": "text", "text": "<seq>C</seq>"}),
        {"role": "assistant", "content": "<seq>G</seq>"},
    ]
    messages = mark_parts(row(messages=[{"role": "user", "content": "<seq>A</seq>"}, turns[1]]), finding)[0]["messages"]
    assert [names(turn["media"]) for turn in messages] == [["A"], ["G"]]
    assert names(mark_parts(row(prompt="", choices=["<seq>A</seq>", "b"], answer=0), finding)[0]["media"]) == ["A"]


def test_a_pattern_without_a_group_finds_the_content_itself_and_the_longer_of_two_that_begin_together(
    rules: MediaRules,
) -> None:
    motif = replace(rules, patterns={"dna": re.compile(r"\b[ACGT]{4,}\b|")})
    found, _ = mark_parts(row(text="the CAT of ACGTAC"), motif)
    assert (found["text"], names(found["media"])) == (f"the CAT of {M}", ["ACGTAC"])
    tagged = replace(rules, patterns={"dna": re.compile("<dna>([ACGT]+)</dna>")})
    found, _ = mark_parts(row(prompt="<dna>AC</dna> or <dna>", response="x", dna="GG"), tagged)
    assert (found["prompt"], names(found["media"])) == (f"{M} or {M}", ["AC", "GG"])


def test_what_a_pattern_finds_is_checked_as_any_part_is(finding: MediaRules) -> None:
    for text, message in {
        "a <seq></seq>": "field 'text', letter 3 is an empty dna",
        "![x](/etc/passwd)": "outside",
        "![x](https://a.b/c.png)": "URL",
    }.items():
        with pytest.raises(DataError, match=message):
            mark_parts(row(text=text), finding)


@given(
    pieces=st.lists(st.sampled_from(["<seq>", "</seq>", "<seq>AC</seq>", "A", "<image>", "![", "](b.png)", "\n", "é"]))
)
def test_as_many_marks_as_parts_whatever_patterns_find(finding: MediaRules, pieces: list[str]) -> None:
    text = "".join(pieces)
    expected = FOUND["image"].sub(M, re.sub("<seq>[AC\n]*[AC][AC\n]*</seq>", M, text))
    if "<seq></seq>" in text.replace("\n", ""):
        return
    found, count = mark_parts(row(text=text), finding)
    assert found["text"] == expected
    assert count == expected.count(M) == len(found.get("media", ()))


KEYS = (
    "type",
    "text",
    "image",
    "path",
    "url",
    "bytes",
    "data",
    "role",
    "content",
    "from",
    "value",
    "media",
    "source",
    "dna",
)
FIELDS = (
    "text",
    "system",
    "history",
    "input",
    "prompt",
    "messages",
    "conversations",
    "choices",
    "response",
    "chosen",
    "rejected",
)
leaf = st.one_of(
    st.none(),
    st.integers(-2, 2),
    st.binary(max_size=3),
    st.sampled_from(
        [
            "image",
            "text",
            "user",
            "assistant",
            "gpt",
            "<image>",
            "a.png",
            "none.png",
            URI,
            "data:,",
            M,
            "..",
            "x.zip::y",
            "ACGT",
        ]
    ),
)
value = st.recursive(
    leaf,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)),
    max_leaves=12,
)


@given(fields=st.dictionaries(st.sampled_from((*FIELDS, "image", "images", "dna", "media")), value, max_size=5))
def test_rows_of_any_shape_are_marked_or_refused_with_their_place(rules: MediaRules, fields: dict[str, Any]) -> None:
    before = repr(fields)
    marked, count = marked_or_refused(row(**fields), rules)
    assert (count > 0) == any(M in text for text in texts_in(dict(marked)))
    assert set(marked) <= {"id", "media", *fields}
    assert repr(fields) == before


def marked_or_refused(given_row: dict[str, Any], rules: MediaRules) -> tuple[Any, int]:
    """What becomes of a row; nothing of one that is refused as it should be."""
    try:
        return mark_parts(given_row, rules)
    except DataError as error:
        place = str(error).partition(": ")[0]
    assert place == "rows.jsonl:1"
    return {}, 0
