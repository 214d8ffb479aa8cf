"""What stands in front of a text, and how a text goes on, as the tokenizers' own libraries have it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from sentencepiece import SentencePieceProcessor
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer

from mt_core import begin_ids, continuation_encoder
from mt_plugin_standard.objectives.pretrain import Pretrain
from mt_plugin_standard.tokenizers.byte import ByteConfig, build_byte
from mt_plugin_standard.tokenizers.huggingface import HuggingFaceConfig, build_huggingface
from mt_plugin_standard.tokenizers.sentencepiece import SentencePieceConfig, build_sentencepiece
from mt_tools.generation.prompts import text_ids
from mt_train.assemble.identity import tokenizer_digest
from mt_train.config.data import DataConfig
from mt_train.data.templates import build_template
from mt_train.generation.loaded_model import LoadedModel

SPECIALS = [("<s>", 0), ("</s>", 1)]
LINES = ["the answer is yes", "Answer: no, it is not", "yes and no (maybe) 3.14"] * 4
TEXT = "Answer: yes (no)"


def template(single: str) -> Any:
    return processors.TemplateProcessing(single=single, special_tokens=SPECIALS)


AFTER_BYTES = processors.ByteLevel(trim_offsets=False)
PROCESSORS: dict[str, tuple[Any, dict[str, Any]]] = {
    "Llama 2": (template("<s> $A"), {"bos_token": "<s>"}),
    "Llama 3": (processors.Sequence([AFTER_BYTES, template("<s> $A")]), {"bos_token": "<s>"}),
    "Gemma": (template("<s> $A"), {"bos_token": "<s>", "pad_token": "<pad>"}),
    "GPT-2, whose begin token is its end token": (
        AFTER_BYTES,
        {"bos_token": "</s>", "tokenizer_class": "GPT2Tokenizer"},
    ),
    "a begin token that is put nowhere": (AFTER_BYTES, {"bos_token": "<s>"}),
    "no processor": (None, {"bos_token": "<s>"}),
    "Qwen, without a begin token": (AFTER_BYTES, {"bos_token": None}),
    "T5, with an end": (template("$A </s>"), {}),
    "RoBERTa": (processors.RobertaProcessing(("</s>", 1), ("<s>", 0)), {"bos_token": "<s>"}),
    "a begin token that no config names": (template("<s> $A"), {}),
}


@pytest.fixture(scope="module")
def inner() -> Any:
    """Byte-level BPE of some lines."""
    found = tokenizers.Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    found.train_from_iterator(LINES, trainer)
    return found


def write(folder: Path, inner: Any, processor: Any, config: dict[str, Any]) -> Path:
    shell = tokenizers.Tokenizer.from_str(inner.to_str())
    if processor is not None:
        shell.post_processor = processor
    folder.mkdir(parents=True, exist_ok=True)
    shell.save(str(folder / "tokenizer.json"))
    written = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(written))
    return folder


@pytest.mark.parametrize("kind", PROCESSORS)
def test_prompts_and_rows_begin_as_transformers_begins_a_text(kind: str, inner: Any, tmp_path: Path) -> None:
    folder = write(tmp_path, inner, *PROCESSORS[kind])
    tokenizer = build_huggingface(HuggingFaceConfig(path=str(folder)))
    expected = AutoTokenizer.from_pretrained(folder)(TEXT).input_ids
    end = [1] if expected[-1] == 1 else []  # what a tokenizer puts behind a text begins no answer
    prompt = text_ids(LoadedModel(None, tokenizer, 128), TEXT)  # type: ignore[arg-type]
    assert [*prompt, *end] == expected
    template = build_template(tokenizer, DataConfig(template="plain"))
    assert template.prompt([{"role": "user", "content": TEXT}]) == prompt
    sample = Pretrain(tokenizer, template).encode({"id": "1", "text": TEXT})
    assert list(sample.ids) == [*prompt, 1]  # type: ignore[union-attr]


@pytest.mark.parametrize("word", ["none", "always", "<s>", "<pad>"])
@pytest.mark.parametrize("kind", ["Llama 3", "RoBERTa", "GPT-2, whose begin token is its end token", "no processor"])
def test_a_begin_token_that_is_asked_for_is_that_of_run_and_export(
    kind: str, word: str, inner: Any, tmp_path: Path
) -> None:
    folder = write(tmp_path / "a", inner, *PROCESSORS[kind])
    tokenizer = build_huggingface(HuggingFaceConfig(path=str(folder), bos_token=word))
    known = {"none": None, "always": PROCESSORS[kind][1]["bos_token"]}.get(word, word)
    token = None if known is None else inner.token_to_id(known)
    assert tokenizer.bos_id == token
    assert begin_ids(tokenizer) == (() if token is None else (token,))
    (tmp_path / "out").mkdir()
    tokenizer.save(tmp_path / "out")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = [*begin_ids(tokenizer), *tokenizer.encode(TEXT)]
    assert theirs(TEXT).input_ids[: len(ids)] == ids
    assert theirs.bos_token_id == token


def test_none_takes_each_special_token_away_and_older_runs_keep_what_they_had(inner: Any, tmp_path: Path) -> None:
    folder = write(tmp_path, inner, AFTER_BYTES, {"bos_token": "<s>", "pad_token": "<pad>"})
    plain = build_huggingface(HuggingFaceConfig(path=str(folder)))
    assert (plain.bos_id, plain.eos_id, plain.pad_id, plain.begin_ids) == (0, 1, 2, ())
    bare = build_huggingface(HuggingFaceConfig(path=str(folder), bos_token=None, eos_token="none", pad_token=None))
    assert (bare.bos_id, bare.eos_id, bare.pad_id) == (None, None, None)
    written = HuggingFaceConfig(path=str(folder)).model_dump(mode="json")
    assert HuggingFaceConfig(**written) == HuggingFaceConfig(path=str(folder))
    older = HuggingFaceConfig(**{**written, "bos_token": None, "eos_token": None, "pad_token": None})
    before = build_huggingface(older)
    assert (before.begin_ids, before.bos_id, before.eos_id, before.pad_id) == ((0,), 0, 1, 2)
    assert tokenizer_digest(before) != tokenizer_digest(plain), "other tokens, so another cache, and told on resume"


def test_a_tokenizer_that_does_not_say_begins_with_its_begin_token() -> None:
    class Stranger:
        bos_id: int | None = 7

    assert begin_ids(Stranger()) == (7,)  # type: ignore[arg-type]
    Stranger.bos_id = None
    assert begin_ids(Stranger()) == ()  # type: ignore[arg-type]
    assert begin_ids(build_byte(ByteConfig())) == (256,)


@pytest.fixture(scope="module")
def sentencepiece(train_sentencepiece: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("sentencepiece") / "tokenizer.model"
    return train_sentencepiece(file, LINES, 330)  # type: ignore[no-any-return]


@pytest.mark.parametrize("says", [None, True, False])
def test_a_config_beside_a_sentencepiece_model_may_say_that_it_begins_no_text(
    says: bool | None, sentencepiece: Path, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece.read_bytes())
    if says is not None:
        config = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": says}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = build_sentencepiece(SentencePieceConfig(path=str(tmp_path)))
    library = SentencePieceProcessor(model_file=str(sentencepiece))
    ids = [*begin_ids(tokenizer), *tokenizer.encode(TEXT)]
    assert ids == library.encode(TEXT, add_bos=says is not False)
    if says is not None:
        assert AutoTokenizer.from_pretrained(tmp_path)(TEXT).input_ids == ids
    (tmp_path / "out").mkdir()
    tokenizer.save(tmp_path / "out")
    assert AutoTokenizer.from_pretrained(tmp_path / "out")(TEXT).input_ids == ids


def with_space() -> Any:
    """Words after ``▁``, as a tokenizer.json of SentencePiece's kind has them."""
    words = ["▁", "▁Answer", "▁yes", ":", "yes", "no", "▁no", "(", "\n"]
    found = tokenizers.Tokenizer(models.Unigram([("<unk>", 0.0), *((word, -1.0) for word in words)], unk_id=0))
    found.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    found.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    found.add_special_tokens(["<s>", "</s>"])
    return found


PAIRS = [
    ("Answer: ", "yes"),
    ("Answer:", " yes"),
    ("Answer:", "yes"),
    ("Answer: ", " no"),
    ("Answer: no ", "no\n"),
    ("", "yes"),
]


@pytest.mark.parametrize(("prompt", "answer"), PAIRS)
@pytest.mark.parametrize("kind", ["huggingface", "sentencepiece", "byte-level", "byte"])
def test_prompt_and_answer_are_the_text_and_the_prompt_is_that_of_generation(
    kind: str, prompt: str, answer: str, inner: Any, sentencepiece: Path, tmp_path: Path
) -> None:
    """A space in front of the answer would be one more than the text has, and one that generation never has."""
    if kind == "sentencepiece":
        tokenizer: Any = build_sentencepiece(SentencePieceConfig(path=str(sentencepiece)))
    elif kind == "byte":
        tokenizer = build_byte(ByteConfig())
    else:
        folder = write(tmp_path, with_space() if kind == "huggingface" else inner, None, {})
        tokenizer = build_huggingface(HuggingFaceConfig(path=str(folder)))
    template = build_template(tokenizer, DataConfig(template="plain"))
    turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    encoded = template.encode(turns)
    asked = template.prompt(turns[:1]) if prompt else [*begin_ids(tokenizer)]
    assert encoded.ids[: len(asked)] == asked
    body = encoded.ids[len(begin_ids(tokenizer)) : -1]
    assert tokenizer.decode(body) == prompt + answer
    whole = tokenizer.encode(prompt + answer)
    if whole[: len(tokenizer.encode(prompt))] == tokenizer.encode(prompt):
        assert body == whole
    assert list(encoded.trained) == [False] * len(asked) + [True] * (len(encoded.ids) - len(asked))


def test_turns_without_an_end_between_them_are_the_text_too(sentencepiece: Path) -> None:
    tokenizer = build_sentencepiece(SentencePieceConfig(path=str(sentencepiece)))
    tokenizer.eos_id = None
    template = build_template(tokenizer, DataConfig(template="plain"))
    said = ["Answer: ", "yes", "Answer:", " no"]
    roles = ["user", "assistant"] * 2
    ids = template.encode([{"role": role, "content": text} for role, text in zip(roles, said, strict=True)]).ids
    assert tokenizer.decode(ids[1:]) == "".join(said)
    weighted = [
        {"role": "user", "content": "Answer: "},
        {"role": "user", "content": "yes", "train": True, "weight": 2.0},
    ]
    assert tokenizer.decode(template.encode(weighted).ids[1:]) == "Answer: yes"


def test_a_continuation_has_no_space_of_its_own(sentencepiece: Path) -> None:
    tokenizer = build_sentencepiece(SentencePieceConfig(path=str(sentencepiece)))
    library = SentencePieceProcessor(model_file=str(sentencepiece))
    continued = continuation_encoder(tokenizer)
    assert tokenizer.decode([*library.encode("Answer:"), *continued(" yes")]) == "Answer: yes"
    assert continued("yes") == library.encode("\nyes")[2:] != library.encode("yes")
    byte = build_byte(ByteConfig())
    assert continuation_encoder(byte)("yes") == byte.encode("yes")
