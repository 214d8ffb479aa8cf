"""Llama 3's tokenizer, on a small file of ranks made here."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mt_core.errors import MtError
from mt_plugin_llama.tokenizer import SPECIAL, Llama3Tokenizer, Llama3TokenizerConfig, build_llama3_tokenizer
from mt_train.config.data import DataConfig
from mt_train.data.templates import build_template

NAMES = ("begin_of_text", "start_header_id", "end_header_id", "eot_id")
MERGES = [b"th", b"the", b" t", b" th", b" the", b"in", b"ing", b"an", b"and", b" and", b"  ", b" " * 4, b" " * 8]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    tokens = [bytes([value]) for value in range(256)] + MERGES
    lines = [f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(tokens)]
    path = tmp_path / "tokenizer.model"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def tokenizer(file: Path, monkeypatch: pytest.MonkeyPatch) -> Llama3Tokenizer:
    def refuse(*arguments: object, **named: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    return build_llama3_tokenizer(Llama3TokenizerConfig(path=str(file)))


@pytest.mark.parametrize("text", ["the king and the thing", "", "naïve 漢字 🙂", "a\n\n b  12345", "<|eot_id|>"])
def test_text_comes_back_and_offsets_cover_it(tokenizer: Llama3Tokenizer, text: str) -> None:
    ids, offsets = tokenizer.encode_with_offsets(text)
    assert tokenizer.decode(ids) == text
    assert b"".join(tokenizer.token_bytes(each) or b"?" for each in ids) == text.encode()
    assert tokenizer.token_bytes(tokenizer.special_ids["<|eot_id|>"]) is None
    assert ids == tokenizer.encode(text)
    assert len(ids) == len(offsets)
    assert offsets == sorted(offsets)
    assert not offsets or (offsets[0][0] == 0 and offsets[-1][1] == len(text))


LONG_RUNS = (" " * 1_000_000, "-" * 24_999 + "the" + "\n" * 25_000 + "x" * 25_001 + "\t \u3000" * 9_000)
"""The first is more than the library survives."""


@pytest.mark.parametrize("text", LONG_RUNS, ids=["spaces", "others"])
def test_long_runs_are_cut_where_metas_code_cuts_them(text: str, tokenizer: Llama3Tokenizer) -> None:
    ids, offsets = tokenizer.encode_with_offsets(text)
    expected = [piece for at in range(0, len(text), 400_000) for piece in split_runs(text[at : at + 400_000])]
    assert ids == [token for piece in expected for token in tokenizer.encode(piece)]
    assert tokenizer.decode(ids) == text
    assert offsets[-1][1] == len(text)


def split_runs(text: str, longest: int = 25_000) -> Iterator[str]:
    """``_split_whitespaces_or_nonwhitespaces`` of llama-models, models/llama3/tokenizer.py."""
    start, count, is_space = 0, 0, text[0].isspace()
    for place, letter in enumerate(text):
        if is_space != letter.isspace():
            count, is_space = 1, letter.isspace()
        elif (count := count + 1) > longest:
            yield text[start:place]
            start, count = place, 1
    yield text[start:]


def test_merges_are_used_and_special_tokens_follow_the_ranks(tokenizer: Llama3Tokenizer) -> None:
    assert tokenizer.encode("the and") == [256 + MERGES.index(b"the"), 256 + MERGES.index(b" and")]
    ranks = 256 + len(MERGES)
    assert tokenizer.size == ranks + 256
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (ranks, ranks + 1, ranks + 4)
    assert len(set(SPECIAL)) == 256
    assert SPECIAL.index("<|eot_id|>") == 9, "128009 in the published vocabulary of 128000 ranks"
    assert tokenizer.decode([ranks, *tokenizer.encode("the"), ranks + 9]) == "the"


def test_a_special_token_in_a_text_is_plain_text(tokenizer: Llama3Tokenizer) -> None:
    assert max(tokenizer.encode("<|begin_of_text|>")) < 256 + len(MERGES)


def test_a_chat_template_writes_special_tokens_and_a_person_does_not(tokenizer: Llama3Tokenizer) -> None:
    template = build_template(tokenizer, DataConfig(template="llama3"))
    turns = [{"role": "user", "content": "<|eot_id|>"}, {"role": "assistant", "content": "the"}]
    bos, start, end, stop = (tokenizer.special_ids[f"<|{name}|>"] for name in NAMES)

    def written(role: str, text: str) -> list[int]:
        return [start, *tokenizer.encode(role), end, *tokenizer.encode("\n\n"), *tokenizer.encode(text), stop]

    encoded = template.encode(turns)
    assert encoded.ids == [bos, *written("user", "<|eot_id|>"), *written("assistant", "the")]
    assert [token for token, is_trained in zip(encoded.ids, encoded.trained, strict=True) if is_trained] == [
        *tokenizer.encode("the"),
        stop,
    ]
    assert template.stop_ids == (stop,)


@pytest.mark.parametrize(("content", "says"), [("not base64 at all", ":1: not a base64"), ("YQ== 0\n", "1 ranks")])
def test_another_file_is_refused_by_line(content: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "x.model").write_text(content)
    with pytest.raises(MtError, match=says):
        build_llama3_tokenizer(Llama3TokenizerConfig(path=str(tmp_path / "x.model")))


def test_a_missing_file_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(MtError, match=r"set tokenizer\.path"):
        build_llama3_tokenizer(Llama3TokenizerConfig(path=str(tmp_path / "none")))
