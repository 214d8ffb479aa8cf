"""What holds for every tokenizer, and what is special about each."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tiny_tokenizers
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from mt_core import DataError, ManyOffsets, MtError
from mt_core.protocols import Tokenizer
from mt_plugin_standard.tokenizers.huggingface import HuggingFaceTokenizer
from mt_tools.cli.data import main
from mt_train.generation.text import TextStream

any_text = (
    st.text(max_size=60)
    | st.just("Hello , it 's me .")
    | st.text(st.sampled_from("ab \n\té你ﬁ\u0301\u200d🙂<s>/"), max_size=30)
)
SPECIAL = ("<s>", "</s>", "<pad>")
relaxed = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_every_tokenizer_keeps_the_protocol(tokenizer: Any) -> None:
    assert isinstance(tokenizer, Tokenizer)
    specials = [token for token in (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) if token is not None]
    assert len(set(specials)) == len(specials) >= 2
    assert all(0 <= token < tokenizer.size for token in specials)


@given(any_text)
@relaxed
def test_any_text_comes_back(tokenizer: Any, text: str) -> None:
    if not any(mark in text for mark in SPECIAL):  # huggingface reads it as the special token, which gives no text
        assert tokenizer.decode(tokenizer.encode(text)) == text


@given(any_text)
@relaxed
def test_encoding_adds_no_special_token(tokenizer: Any, text: str) -> None:
    if not any(mark in text for mark in SPECIAL):
        specials = {tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id}
        assert not specials & set(tokenizer.encode(text))


@given(any_text)
@relaxed
def test_offsets_cover_the_text_in_order(tokenizer: Any, text: str) -> None:
    ids, offsets = tokenizer.encode_with_offsets(text)
    assert ids == tokenizer.encode(text)
    assert len(offsets) == len(ids)
    assert all(0 <= start <= end <= len(text) for start, end in offsets)
    assert offsets == sorted(offsets)
    assert {at for start, end in offsets for at in range(start, end)} == set(range(len(text)))


@given(st.lists(any_text, max_size=5))
@example(["one <s> two", ""])
@relaxed
def test_many_texts_at_once_have_the_ids_and_offsets_of_each(tokenizer: Any, texts: list[str]) -> None:
    if not isinstance(tokenizer, ManyOffsets):
        pytest.skip("one by one")
    tokenizer.encode_literally("<s>")  # type: ignore[attr-defined]  # a setting of the tokenizer that must not stay
    got = tokenizer.encode_many_with_offsets(texts)
    assert [(ids, list(offsets)) for ids, offsets in got] == list(map(tokenizer.encode_with_offsets, texts))  # type: ignore[attr-defined]
    for ids, offsets in got:
        places = range(-len(ids), len(ids))
        assert [offsets[place] for place in places] == [list(offsets)[place] for place in places]
        assert offsets[1:] == list(offsets)[1:]
        with pytest.raises(IndexError):
            offsets[len(ids)]


def test_offsets_point_at_the_characters_that_a_token_decodes_to(tokenizer: Any) -> None:
    text = "The import statement, wörld 你好, is used twice."
    for token, (start, end) in zip(*tokenizer.encode_with_offsets(text), strict=True):
        piece = tokenizer.decode([token])
        if start < end and "\ufffd" not in piece:
            assert text[start:end].strip() == piece.strip()


def test_special_tokens_give_no_text(tokenizer: Any) -> None:
    ids = [tokenizer.bos_id, *tokenizer.encode("some text"), tokenizer.eos_id]
    assert tokenizer.decode(ids) == "some text"


def test_the_bytes_of_tokens_are_parts_of_the_text(tokenizer: Any) -> None:
    """Where a token is bytes, as those are that a character is written in which the vocabulary lacks."""
    text = "東🙂"
    ids = tokenizer.encode(text)
    found = [tokenizer.token_bytes(each) for each in ids]
    written = [part for part in found if part is not None]
    assert b"".join(written) == text.encode()
    for special in (tokenizer.eos_id, tokenizer.size, tokenizer.size + 9):
        assert tokenizer.token_bytes(special) is None


def test_a_text_that_ends_within_a_character_keeps_those_before_it(tokenizer: Any) -> None:
    ids = tokenizer.encode(text := "a🙂é🙂")
    for count in range(len(ids) + 1):
        assert text.startswith(tokenizer.decode(ids[:count]).rstrip("\ufffd"))


def test_bytes_that_are_no_text_together_are_decoded_as_sentencepiece_does() -> None:
    """As Llama 2's files ask for it, the whole run was U+FFFD: a stream had shown a character that the whole text lacked."""
    inner = tiny_tokenizers.metaspace(["▁dog", "o", "▁東"])
    ours = HuggingFaceTokenizer(PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>"), Path(), {}, "mean")
    pieces = [*(f"<0x{byte:02X}>" for byte in "é🙂".encode()), "▁dog", "o", "▁東", "▁", "<s>"]
    for seed in range(300):
        drawn = random.Random(seed)
        ids = [inner.token_to_id(drawn.choice(pieces)) for _ in range(drawn.randint(1, 70))]
        parts: list[str] = []
        stream = TextStream(ours, show=parts.append)
        for each in ids:
            stream.push(each)
        assert stream.close() == "".join(parts) == ours.decode(ids)
        theirs = inner.decode(ids, skip_special_tokens=True)
        assert ours.decode(ids) == theirs or "\ufffd" in theirs
    smile = [inner.token_to_id(f"<0x{byte:02X}>") for byte in "🙂".encode()]
    assert ours.decode([*smile, smile[0], smile[1]]) == "🙂\ufffd\ufffd"
    assert ours.decode([smile[1]] * 5000) == "\ufffd" * 5000


def test_an_id_of_a_larger_embedding_is_decoded_without_an_error(tokenizer: Any) -> None:
    assert tokenizer.decode([*tokenizer.encode("ab"), tokenizer.size, tokenizer.size + 4000]).startswith("ab")


def test_half_a_character_is_refused(tokenizer: Any) -> None:
    with pytest.raises(DataError, match=r"character 2 of a text is a lone surrogate \('\\ud83d'\)"):
        tokenizer.encode("ab\ud83d")
    with pytest.raises(DataError, match="lone surrogate"):
        tokenizer.encode_with_offsets("ab\ud83d")


def test_bytes_are_the_bytes_of_utf8(tokenizers: dict[str, Any]) -> None:
    byte = tokenizers["byte"]
    assert byte.encode("aé🙂") == list("aé🙂".encode())
    assert byte.decode([0x61, 0xC3, 258, 300]) == "a\ufffd\ufffd"
    assert (byte.size, byte.bos_id, byte.eos_id, byte.pad_id) == (259, 256, 257, 258)


def test_sentencepiece_has_the_ids_of_its_library(
    tokenizers: dict[str, Any], sentencepiece_file: Path, texts: list[str]
) -> None:
    from sentencepiece import SentencePieceProcessor

    reference = SentencePieceProcessor(model_file=str(sentencepiece_file))
    mine = tokenizers["sentencepiece"]
    assert [mine.encode(text) for text in texts] == reference.encode(texts)
    assert (mine.size, mine.bos_id, mine.eos_id, mine.pad_id) == (600, 1, 2, None)
    assert mine.encode("<s>") != [mine.bos_id]


def test_a_folder_and_its_file_are_the_same_tokenizer(
    build: Any, sentencepiece_file: Path, huggingface_folder: Path
) -> None:
    text = "The same ids, please."
    for name, file in (("sentencepiece", sentencepiece_file), ("huggingface", huggingface_folder / "tokenizer.json")):
        one, two = (build("tokenizer", name, {"path": str(path)}) for path in (file, file.parent))
        assert (one.encode(text), one.bos_id, one.eos_id) == (two.encode(text), two.bos_id, two.eos_id)
        assert one.chat_template == two.chat_template


def test_huggingface_has_the_ids_of_its_library(
    tokenizers: dict[str, Any], huggingface_file: Path, texts: list[str]
) -> None:
    from tokenizers import Tokenizer as Reference

    reference = Reference.from_file(str(huggingface_file))
    mine = tokenizers["huggingface"]
    assert [mine.encode(text) for text in texts] == [
        reference.encode(text, add_special_tokens=False).ids for text in texts
    ]
    assert (mine.bos_id, mine.eos_id, mine.pad_id, mine.chat_template) == (0, 1, 2, "{{ messages }}")


SPELLED = ["</s>", "a</s>b <pad>", "<s> </s>\n</s>", "plain", ""]


def test_special_tokens_that_a_text_spells_are_text_unless_they_are_to_be_parsed(
    build: Any, tokenizers: dict[str, Any], huggingface_folder: Path
) -> None:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(str(huggingface_folder))
    parsing = build("tokenizer", "huggingface", {"path": str(huggingface_folder), "parse_specials": True})
    for mine, split in ((tokenizers["huggingface"], True), (parsing, False)):
        expected = [reference(text, add_special_tokens=False, split_special_tokens=split).input_ids for text in SPELLED]
        assert [mine.encode_text(text) for text in SPELLED] == mine.encode_many(SPELLED) == expected
        assert bool({0, 1, 2} & set().union(*expected)) is not split
        assert mine.encode("a</s>")[-1] == 1, "as a chat template writes it"
        assert mine.encode_many(SPELLED) == expected, "whatever was encoded before"


@pytest.mark.parametrize("parse", [False, True])
def test_a_user_is_told_of_rows_that_spell_special_tokens(
    huggingface_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], parse: bool
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "an end </s>"}\n{"text": "none"}\n')
    words = ["--tokenizer", "huggingface", "--tokenizer.path", str(huggingface_folder), "--data.eval", "none"]
    words += ["--dataset", "jsonl", "--dataset.path", str(tmp_path / "rows.jsonl"), "--json"]
    assert main(["inspect", *words, "--tokenizer.parse-specials", str(parse).lower()]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["rows_spelling"] == (0 if parse else 1)
    assert any("1 of 2 rows spell special tokens" in line for line in about["warnings"]) is not parse
    assert [part["special"] for part in about["examples"][0]["parts"]] == [True, False, True]


def test_the_special_tokens_of_a_sentencepiece_model_are_known_by_name(tokenizers: dict[str, Any]) -> None:
    mine = tokenizers["sentencepiece"]
    assert set(mine.special_texts) >= {"<s>", "</s>"}
    assert not {mine.bos_id, mine.eos_id} & set(mine.encode("a <s> b </s>"))


def test_a_bare_tokenizer_file_takes_special_tokens_from_the_config(build: Any, huggingface_file: Path) -> None:
    bare = build("tokenizer", "huggingface", {"path": str(huggingface_file)})
    assert (bare.bos_id, bare.eos_id, bare.pad_id, bare.chat_template) == (None, None, None, None)
    named = build("tokenizer", "huggingface", {"path": str(huggingface_file), "eos_token": "</s>"})
    assert (named.bos_id, named.eos_id) == (None, 1)
    assert named.size == bare.size
    with pytest.raises(MtError, match=r"has no token '<end>' \(tokenizer\.eos_token\)"):
        build("tokenizer", "huggingface", {"path": str(huggingface_file), "eos_token": "<end>"})


def test_the_size_counts_to_the_highest_id(build: Any, huggingface_file: Path, tmp_path: Path) -> None:
    content = json.loads(huggingface_file.read_text())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    content["added_tokens"].append({"id": 900, "content": "<far>", **flags})
    content["model"]["vocab"]["<far>"] = 900
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert build("tokenizer", "huggingface", {"path": str(tmp_path / "tokenizer.json")}).size == 901


def test_a_slow_tokenizer_encodes_but_refuses_offsets_by_name(build: Any, tmp_path: Path) -> None:
    from transformers import ByT5Tokenizer

    ByT5Tokenizer().save_pretrained(tmp_path)
    slow = build("tokenizer", "huggingface", {"path": str(tmp_path)})
    assert slow.decode(slow.encode("any text é")) == "any text é"
    with pytest.raises(MtError, match="is a ByT5Tokenizer, a tokenizer in Python that knows no offsets"):
        slow.encode_with_offsets("any text")


def test_code_in_a_folder_is_never_run(build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = {"auto_map": {"AutoTokenizer": ["evil.Evil", None]}, "tokenizer_class": "Evil"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text("open('ran', 'w')\nclass Evil: pass\n")
    with pytest.raises(MtError, match="cannot be read as a Hugging Face tokenizer"):
        build("tokenizer", "huggingface", {"path": str(tmp_path)})
    assert not Path("ran").exists()
    assert "evil" not in sys.modules


FAULTS: dict[str, tuple[str, dict[str, bytes], str]] = {
    "no file": ("sentencepiece", {}, r"/x/tokenizer\.model does not exist\. Set tokenizer\.path"),
    "the other kind": (
        "sentencepiece",
        {"tokenizer.json": b"{}"},
        r"It has a tokenizer\.json: use --tokenizer huggingface",
    ),
    "no model": ("sentencepiece", {"tokenizer.model": b"IQ== 0\nIg== 1\n"}, r"is not a SentencePiece model .*Llama 3"),
    "empty model": ("sentencepiece", {"tokenizer.model": b""}, r"is not a SentencePiece model"),
    "no json file": (
        "huggingface",
        {"a": b""},
        r"folder /.*/x has neither tokenizer\.json nor tokenizer_config\.json\. Name another",
    ),
    "a model file": (
        "huggingface",
        {"tokenizer.model": b""},
        r"It has a tokenizer\.model: use --tokenizer sentencepiece",
    ),
    "broken json": ("huggingface", {"tokenizer.json": b"{bad"}, r"/x cannot be read as a Hugging Face tokenizer: "),
    "other json": ("huggingface", {"tokenizer.json": b'{"a": 1}'}, r"/x cannot be read as a Hugging Face tokenizer: "),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_folder_is_named_with_what_to_do(fault: str, build: Any, tmp_path: Path) -> None:
    name, files, message = FAULTS[fault]
    (tmp_path / "x").mkdir()
    for file, content in files.items():
        (tmp_path / "x" / file).write_bytes(content)
    with pytest.raises(MtError, match=message):
        build("tokenizer", name, {"path": str(tmp_path / "x")})


@pytest.mark.parametrize("name", ["sentencepiece", "huggingface"])
def test_a_missing_path_is_shown_in_full(
    name: str, build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=f"{tmp_path}/nowhere does not exist. Set tokenizer.path"):
        build("tokenizer", name, {"path": "nowhere"})


def test_threads_that_share_a_tokenizer_do_not_change_what_the_others_read(
    build: Any, huggingface_folder: Path
) -> None:
    """Rows of a stream are encoded in the background, while a checkpoint asks how the tokenizer reads a sentence."""
    mine = build("tokenizer", "huggingface", {"path": str(huggingface_folder)})
    text = "a </s> b" * 5
    asked: dict[Callable[[str], list[int]], list[int]] = {
        mine.encode: mine.encode(text),
        mine.encode_literally: mine.encode_literally(text),
    }
    asked[lambda each: mine.encode_many([each])[0]] = asked[mine.encode_literally]
    asked[lambda each: mine.encode_many_with_offsets([each])[0][0]] = asked[mine.encode]
    assert asked[mine.encode] != asked[mine.encode_literally]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(len(asked)) as pool:
            read = {encode: pool.submit(_encode_often, encode, text) for encode in asked}
            assert all(read[encode].result(timeout=300) == {tuple(ids)} for encode, ids in asked.items())
    finally:
        sys.setswitchinterval(before)


def _encode_often(encode: Callable[[str], list[int]], text: str) -> set[tuple[int, ...]]:
    return {tuple(encode(text)) for _ in range(800)}
