"""Vocabularies as llama.cpp reads them: its names for the ways to cut a text, as transformers' reader has them, and types of tokens."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
from transformers.tokenization_utils_base import generate_merges

sys.path.insert(0, str(Path(__file__).parent))

from models import make

from mt_core.errors import UsageError
from mt_tools.convert.gguf.vocabulary import BYTE, CONTROL, CUTS, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, read_vocabulary
from mt_tools.convert.gguf.writer import write_gguf

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


@pytest.fixture
def content(pretrained_folder: Path) -> dict[str, Any]:
    return dict(json.loads((pretrained_folder / "tokenizer.json").read_text()))


def written(content: dict[str, Any], folder: Path) -> Path:
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def split(pattern: str, **more: Any) -> dict[str, Any]:
    cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False, **more}
    return {"type": "Sequence", "pretokenizers": [cut, {**BYTE_LEVEL, "use_regex": False}]}


@pytest.mark.parametrize("name", ["llama-bpe", "qwen2"])
def test_a_cut_has_the_name_under_which_transformers_reads_it(
    name: str, content: dict[str, Any], tmp_path: Path
) -> None:
    content["pre_tokenizer"] = split(GGUF_PRE_TOKENIZER_SPLITS[name])
    assert read_vocabulary(written(content, tmp_path), 300).pre == name
    assert {CUTS[pattern] for pattern in CUTS} == {"llama-bpe", "qwen2", "gpt-2"}


def test_gpt_2s_cut_is_that_of_byte_level_itself_and_digits_are_smollms(
    content: dict[str, Any], tmp_path: Path
) -> None:
    content["pre_tokenizer"] = BYTE_LEVEL
    assert read_vocabulary(written(content, tmp_path), 300).pre == "gpt-2"
    digits = {"type": "Digits", "individual_digits": True}
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, BYTE_LEVEL]}
    assert read_vocabulary(written(content, tmp_path), 300).pre == "smollm"


@pytest.mark.parametrize("name", ["llama-bpe", "qwen2"])
@pytest.mark.parametrize("takes_whole", [False, True])
def test_a_word_that_only_one_side_takes_whole_is_refused(
    name: str, takes_whole: bool, content: dict[str, Any], tmp_path: Path
) -> None:
    """llama.cpp takes a word that is a token whole with Llama 3's cut alone, as its tokenizer.json says (``ignore_merges``)."""
    content["pre_tokenizer"] = split(GGUF_PRE_TOKENIZER_SPLITS[name])
    content["model"]["ignore_merges"] = takes_whole
    assert read_vocabulary(written(content, tmp_path), 300).pre == name, "merges make every token of a trained one"
    size = max(content["model"]["vocab"].values()) + 1
    content["model"]["vocab"]["qxqx"] = size
    written(content, tmp_path)
    ids = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("qxqx").ids
    assert (ids == [size]) == takes_whole
    if takes_whole == (name == "llama-bpe"):
        assert read_vocabulary(tmp_path, size + 1).pre == name
        return
    with pytest.raises(UsageError, match=r"do not make the token 'qxqx'.*\(ignore_merges\)"):
        read_vocabulary(tmp_path, size + 1)


@pytest.mark.parametrize(
    "change",
    [
        {"pre_tokenizer": split(r"\w+")},
        {"pre_tokenizer": split(next(iter(CUTS)), behavior="Removed")},
        {"pre_tokenizer": {**BYTE_LEVEL, "add_prefix_space": True}},
        {"pre_tokenizer": None},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"normalizer": {"type": "Lowercase"}},
    ],
    ids=str,
)
def test_a_cut_without_a_name_is_refused(change: dict[str, Any], content: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no name for"):
        read_vocabulary(written({**content, **change}, tmp_path), 300)


def test_tokens_have_their_types_and_what_is_missing_is_unused(content: dict[str, Any], tmp_path: Path) -> None:
    size = max(content["model"]["vocab"].values()) + 1
    word = {
        "id": size,
        "content": "<think>",
        "special": False,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
    }
    found = read_vocabulary(written({**content, "added_tokens": [*content["added_tokens"], word]}, tmp_path), size + 2)
    assert found.tokens[size:] == ["<think>", f"[PAD{size + 1}]"]
    assert found.types[size:] == [USER_DEFINED, UNUSED]
    assert {found.types[each["id"]] for each in content["added_tokens"]} == {CONTROL}
    assert set(found.types[len(content["added_tokens"]) : size]) == {NORMAL}


def test_what_is_no_bpe_lacks_its_file_or_has_more_ids_than_the_model_is_refused(
    content: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"no tokenizer\.json"):
        read_vocabulary(tmp_path, 300)
    with pytest.raises(UsageError, match="the model 5 tokens"):
        read_vocabulary(written(content, tmp_path), 5)
    with pytest.raises(UsageError, match="has Unigram"):
        read_vocabulary(written({**content, "model": {"type": "Unigram"}}, tmp_path), 300)


def pieces(folder: Path) -> Path:
    """A tokenizer as Llama 2 has one: pieces of text with their spaces, bytes for what is in none, and all merges that make a token."""
    inner = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{number:02X}>" for number in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=special, show_progress=False)
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("\u2581?[^\u2581]+"), "isolated")
    inner.train_from_iterator(
        ["what is the capital of the land that we live in", "the cat sat on that mat"] * 4, trainer
    )
    content = json.loads(inner.to_str())
    content["pre_tokenizer"] = None
    content["added_tokens"] = content["added_tokens"][:3]
    vocabulary = {token: number for token, number in content["model"]["vocab"].items() if number >= len(special)}
    scores = {token: -float(number) for token, number in vocabulary.items()}
    content["model"]["merges"] = [list(pair) for pair in generate_merges(vocabulary, scores)]
    inner = Tokenizer.from_str(json.dumps(content))
    inner.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    ).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"vocab_size": 330}))
    return folder


def test_pieces_are_read_with_the_same_ids_by_their_scores(tmp_path: Path) -> None:
    base = pieces(tmp_path / "base")
    found = read_vocabulary(base, 330)
    assert (found.model, found.pre, found.add_space_prefix) == ("llama", "default", True)
    assert [found.types[number] for number in (0, 1, 2, 3, 258, 259)] == [UNKNOWN, CONTROL, CONTROL, BYTE, BYTE, NORMAL]
    make("llama", base, tmp_path / "model", bos_token_id=1, eos_token_id=2)
    write_gguf(tmp_path / "model", tmp_path / "model.gguf", "fp32", print)
    ours = AutoTokenizer.from_pretrained(tmp_path / "model")
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    for text in (
        "what is that cat",
        "the  land é",
        "a mat</s>",
        "日本",
    ):  # behind a special token transformers' reader adds no space
        assert (
            theirs(text, add_special_tokens=False)["input_ids"] == ours(text, add_special_tokens=False)["input_ids"]
        ), text


@pytest.mark.parametrize(
    ("merges", "is_read"),
    [
        (["a b", "b c", "a bc", "ab c"], True),
        (["a b", "b c", "ab c"], False),
        (["a b", "a bc", "b c", "ab c"], False),
    ],
    ids=["all", "one is missing", "others between"],
)
def test_pieces_that_are_joined_otherwise_are_refused(merges: list[str], is_read: bool, tmp_path: Path) -> None:
    """llama.cpp joins any two that make a token, by the one score of that token."""
    content = json.loads((pieces(tmp_path / "base") / "tokenizer.json").read_text())
    content["model"] |= {
        "vocab": {token: number for number, token in enumerate(["<unk>", "<s>", "</s>", *"abc", "ab", "bc", "abc"])}
    }
    content["model"]["merges"] = [merge.split(" ") for merge in merges]
    if is_read:
        assert read_vocabulary(written(content, tmp_path), 9).scores[-3:] == [-0.0, -1.0, -2.0]
        return
    with pytest.raises(UsageError, match="joins any two pieces"):
        read_vocabulary(written(content, tmp_path), 9)
