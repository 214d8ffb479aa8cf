"""Log-probabilities beside a text: each token's part of the text, and the character that it begins at, whatever the tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_tokenizers
import tokenizers
from served import model_of, running, scripted

from mt_plugin_serve.scores import TokenTexts, add_scores, chat_scores, empty_scores
from mt_plugin_standard.tokenizers.byte import ByteTokenizer
from mt_train.generation import TokenScore


def score(token: int, *likeliest: int) -> TokenScore:
    return TokenScore(token, -0.5, tuple((each, -float(place)) for place, each in enumerate(likeliest, 1)))


def shown(tokenizer: Any, ids: Sequence[int]) -> tuple[list[str], list[int]]:
    """Texts and offsets of the tokens of an answer."""
    found = empty_scores()
    add_scores(found, TokenTexts(tokenizer), [score(token) for token in ids])
    return found["tokens"], found["text_offset"]


def metaspace() -> tokenizers.Tokenizer:
    return tiny_tokenizers.metaspace(["▁The", "▁dog", "▁ran", *"Thedogran."])


def word_pieces() -> tokenizers.Tokenizer:
    return tiny_tokenizers.word_pieces(["The", "dog", "ran", "##ran", "."])


def as_ours(inner: tokenizers.Tokenizer) -> Any:
    return SimpleNamespace(decode=lambda ids: inner.decode(list(ids), skip_special_tokens=True))


def ids_of(inner: tokenizers.Tokenizer, *pieces: str) -> list[int]:
    return [inner.token_to_id(piece) for piece in pieces]


def test_a_character_of_several_tokens_is_one_character() -> None:
    tokens, offsets = shown(ByteTokenizer(), [*"é東a".encode(), 257])
    assert tokens == [*(f"token_id:{byte}" for byte in "é東".encode()), "a", "token_id:257"]
    assert offsets == [0, 0, 1, 1, 1, 2, 3]
    tokens, offsets = shown(ByteTokenizer(), [0xFF, ord("a"), 0xC3, ord("b")])
    assert (tokens[1], tokens[3]) == ("a", "b")
    assert (offsets[1], offsets[3]) == (1, 3), "a half that stays one is shown as a character"


@pytest.mark.parametrize("build", [metaspace, word_pieces])
def test_a_token_has_the_blank_that_it_has_in_the_text(build: Callable[[], tokenizers.Tokenizer]) -> None:
    inner = build()
    mark = "▁" if build is metaspace else ""
    ids = ids_of(inner, f"{mark}The", f"{mark}dog", f"{mark}ran")
    expected = (["The", " dog", " ran"], [0, 3, 7])
    assert shown(as_ours(inner), ids) == expected
    tokens, offsets = shown(as_ours(inner), [0, *ids])
    assert (tokens[1:], offsets) == (expected[0], [0, *expected[1]]), "behind a begin token too"


def test_tokens_of_a_long_text_add_up_to_it() -> None:
    inner = metaspace()
    ids = ids_of(inner, "▁The", "▁▁", "▁dog", "<0xE6>", "<0x9D>", "<0xB1>", ".", "▁ran") * 60
    text = as_ours(inner).decode(ids)
    tokens, offsets = shown(as_ours(inner), ids)
    whole = [(at, token) for at, token in zip(offsets, tokens, strict=True) if not token.startswith("token_id:")]
    assert all(text[at:].startswith(token) for at, token in whole)
    assert sum(len(token) for _, token in whole) + text.count("東") == len(text)
    assert offsets == sorted(offsets)


def test_the_likeliest_tokens_are_named_as_in_their_place() -> None:
    inner = metaspace()
    the, dog, ran = ids_of(inner, "▁The", "▁dog", "▁ran")
    found = empty_scores()
    add_scores(found, TokenTexts(as_ours(inner)), [score(the, the, dog), score(dog, ran, dog)])
    assert [list(top) for top in found["top_logprobs"]] == [["The", "dog"], [" dog", " ran"]]


def test_a_chat_has_the_bytes_of_each_token_which_add_up_to_the_text() -> None:
    """Those of a token that is a part of a character, too, as OpenAI has them; the end token has none."""
    told = chat_scores(TokenTexts(ByteTokenizer()), [score(token, ord("b"), 0xC3) for token in [*"aé".encode(), 257]])
    assert [entry["token"] for entry in told["content"]] == ["a", "token_id:195", "token_id:169", "token_id:257"]
    assert [entry["bytes"] for entry in told["content"]] == [[97], [0xC3], [0xA9], None]
    assert [[top["bytes"] for top in entry["top_logprobs"]] for entry in told["content"]] == [[[98], [0xC3]]] * 4
    inner = metaspace()
    told = chat_scores(TokenTexts(as_ours(inner)), [score(token) for token in ids_of(inner, "▁The", "▁dog")])
    assert [(entry["token"], bytes(entry["bytes"])) for entry in told["content"]] == [
        ("The", b"The"),
        (" dog", b" dog"),
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_offsets_of_an_answer_are_places_in_its_text(stream: bool) -> None:
    """The prompt's characters of several tokens too, in one piece and token by token."""
    prompt, said = "über 東", "naïve 🙂 x"
    with running(model_of(scripted(said, len(prompt.encode())))) as server:
        asked = {"prompt": prompt, "echo": True, "logprobs": 1, "temperature": 0, "max_tokens": 40}
        scores = server.complete(**asked)["choices"][0]["logprobs"]
        if stream:
            told = server.ask("POST", "/v1/completions", {"model": "tiny", **asked, "stream": True})[1]
            scores = added_up(told)
    assert len(scores["tokens"]) == len((prompt + said).encode()) + 2, "with the begin and the end token"
    whole = [(at, each) for at, each in zip(scores["text_offset"], scores["tokens"], strict=True) if len(each) == 1]
    assert whole == [(at, each) for at, each in enumerate(prompt + said) if each.isascii()]


def added_up(events: str) -> dict[str, list[Any]]:
    chunks = [json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: {")]
    found: dict[str, list[Any]] = {"tokens": [], "text_offset": []}
    for scores in [chunk["choices"][0]["logprobs"] for chunk in chunks]:
        for name, listed in found.items():
            listed += scores[name]
    return found
