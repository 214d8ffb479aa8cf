"""A tokenizer and a template that were exported give, in transformers, the ids that the run had."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer

from mt_plugin_standard.tokenizers.byte import ByteConfig, build_byte
from mt_plugin_standard.tokenizers.huggingface import HuggingFaceConfig, build_huggingface
from mt_plugin_standard.tokenizers.sentencepiece import SentencePieceConfig, build_sentencepiece
from mt_tools.convert.folder import GENERATION_CONFIG, _of_run, _write_config
from mt_tools.convert.tokenizer_files import _show_from, make_portable, open_written, tell_differences
from mt_train.config.data import DataConfig
from mt_train.data.templates import build_template

SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
LINES = ["the answer is yes", "Answer: no, it is not", "yes and no (maybe) 3.14"] * 4
USER = {"role": "user", "content": "Where is Paris?"}
CHATS = ([USER], [USER, {"role": "assistant", "content": "There."}, {"role": "user", "content": "Oh ünd?"}])
ADDITIONS = {"system": 'Say "hi"\n{% x %} {{ y }} \\n é🙂', "prefix": " p' ", "postfix": "\n/q"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of GPT-2's kind, as a folder."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(LINES, trainer)
    path = tmp_path_factory.mktemp("tokenizer")
    inner.save(str(path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "of_its_own": 7}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module")
def make(folder: Path, train_sentencepiece: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    file = train_sentencepiece(tmp_path_factory.mktemp("sentencepiece") / "tokenizer.model", LINES, 330)
    made: dict[str, Callable[[], Any]] = {
        "byte": lambda: build_byte(ByteConfig()),
        "sentencepiece": lambda: build_sentencepiece(SentencePieceConfig(path=str(file))),
        "as it puts": lambda: build_huggingface(HuggingFaceConfig(path=str(folder))),
        "always": lambda: build_huggingface(HuggingFaceConfig(path=str(folder), bos_token="always")),
        "none": lambda: build_huggingface(HuggingFaceConfig(path=str(folder), bos_token="none")),
        "added": lambda: build_huggingface(
            HuggingFaceConfig(path=str(folder), add_tokens=("zebra",), add_special_tokens=("<|pause|>",))
        ),
    }
    return lambda kind: made[kind]()


def export(tokenizer: Any, stage: Path, data: DataConfig, base: dict[str, Any] | None = None) -> list[str]:
    """What ``mt-convert`` writes beside the weights of a run, and what it says."""
    stage.mkdir()
    if base is not None:
        (stage / GENERATION_CONFIG).write_text(json.dumps(base))
    said: list[str] = []
    slot = SimpleNamespace(name="one", options=None)
    config = SimpleNamespace(tokenizer=slot, data=data, model=SimpleNamespace(options=None))
    objective = SimpleNamespace(head="language")
    parts = SimpleNamespace(config=config, tokenizer=tokenizer, objective_component=objective, weights_path=None)
    writer = SimpleNamespace(exported=lambda options: {}, special_ids=lambda options, ids: ids)
    source: Any = SimpleNamespace(parts=parts, checkpoint=None, writer=writer)
    ids, ends = _of_run(source, stage, said.append)
    _write_config(source, stage, ids, ends, "float32")
    return said


@pytest.mark.parametrize("template", ["chatml", "mistral", "alpaca", "plain"])
@pytest.mark.parametrize("kind", ["byte", "sentencepiece", "as it puts", "always", "none", "added"])
def test_texts_and_prompts_of_an_export_have_the_ids_of_the_run(
    kind: str, template: str, make: Callable[[str], Any], tmp_path: Path
) -> None:
    tokenizer = make(kind)
    for number, added in enumerate(({}, ADDITIONS)):
        data, out = DataConfig(template=template, **added), tmp_path / str(number)
        said = export(tokenizer, out, data)
        assert not [line for line in said if line.startswith("warning")], said
        theirs, ours = AutoTokenizer.from_pretrained(out), build_template(tokenizer, data)
        for chat in CHATS:
            asked = theirs.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
            assert asked == list(ours.prompt(chat))
        config = json.loads((out / "tokenizer_config.json").read_text())
        assert config["chat_template"] == (out / "chat_template.jinja").read_text() == theirs.chat_template
        assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
        assert not {"is_local", "local_files_only", "backend", "extra_special_tokens"} & config.keys()
        assert ("of_its_own" in config) == (kind in ("as it puts", "always", "none", "added"))


def test_the_ends_of_turns_are_in_the_generation_config_beside_those_of_the_base(
    make: Callable[[str], Any], tmp_path: Path
) -> None:
    tokenizer = make("as it puts")
    stop = tokenizer.special_ids["<|im_end|>"]
    assert export(tokenizer, tmp_path / "a", DataConfig(template="chatml")) == []
    assert read(tmp_path / "a")["eos_token_id"] == [1, stop]
    export(tokenizer, tmp_path / "b", DataConfig(template="chatml"), {"eos_token_id": [9, 1], "temperature": 0.6})
    assert read(tmp_path / "b") == {"eos_token_id": [9, 1, stop], "temperature": 0.6}
    export(tokenizer, tmp_path / "c", DataConfig(), {"eos_token_id": 1, "top_p": 0.9})
    assert read(tmp_path / "c") == {"eos_token_id": 1, "top_p": 0.9}
    export(tokenizer, tmp_path / "d", DataConfig())
    assert read(tmp_path / "d") == {"bos_token_id": 0, "eos_token_id": 1}


def test_a_stop_of_several_tokens_is_told_with_the_options_for_it(make: Callable[[str], Any], tmp_path: Path) -> None:
    (said,) = export(make("byte"), tmp_path / "out", DataConfig(template="chatml"))
    assert "answers end with '<|im_end|>'" in said
    assert "stop_strings=['<|im_end|>']" in said
    assert "stop=['<|im_end|>'] to vLLM" in said


def read(folder: Path) -> Any:
    return json.loads((folder / GENERATION_CONFIG).read_text())


def test_a_tokenizer_to_which_nothing_was_added_is_copied(
    folder: Path, make: Callable[[str], Any], tmp_path: Path
) -> None:
    make("as it puts").save(tmp_path)
    make_portable(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_what_release_5_writes_is_rewritten_for_both(folder: Path, tmp_path: Path) -> None:
    theirs = AutoTokenizer.from_pretrained(folder)
    theirs.add_special_tokens({"additional_special_tokens": SPECIALS[2:]})
    theirs.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["tokenizer_class"] == "TokenizersBackend"
    make_portable(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert config["additional_special_tokens"] == SPECIALS[2:]
    assert AutoTokenizer.from_pretrained(tmp_path).extra_special_tokens == SPECIALS[2:]


def test_a_tokenizer_that_transformers_reads_otherwise_is_told(make: Callable[[str], Any], tmp_path: Path) -> None:
    def told(tokenizer: Any) -> str:
        said: list[str] = []
        tell_differences(open_written(tmp_path, said.append), tokenizer, said.append)
        return "".join(said)

    make("as it puts").save(tmp_path)
    assert told(make("as it puts")) == ""
    assert "what stands in front of a text is" in told(make("always"))
    assert "the bos token is 0 there, and None in the run" in told(make("none"))
    assert "the bos token is 0 there, and 256 in the run" in told(make("byte"))
    assert "transformers (TokenizersBackend) reads" in told(make("byte"))
    (tmp_path / "tokenizer.json").write_text("{")
    said: list[str] = []
    assert open_written(tmp_path, said.append) is None
    assert "cannot open the tokenizer" in said[0]


def test_long_lists_of_ids_are_shown_from_where_they_differ() -> None:
    ids = list(range(40))
    assert _show_from(ids, [*ids[:20], 7]) == "[19, 20, 21, 22, 23, 24, 25, 26] … (from id 19 on)"
    assert _show_from(ids, ids[:39]) == "[38, 39] (from id 38 on)"
    assert _show_from(ids[:9], [7]) == "[0, 1, 2, 3, 4, 5, 6, 7] …"
    assert _show_from([1], [2]) == "[1]"
