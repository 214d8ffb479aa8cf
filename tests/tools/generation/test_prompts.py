"""Conversations are written down as transformers writes them, and their end is known."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from mt_core.errors import UsageError, WeightsError
from mt_core.rows import Encoded
from mt_plugin_standard.tokenizers.byte import ByteConfig, build_byte
from mt_plugin_standard.tokenizers.huggingface import HuggingFaceConfig, build_huggingface
from mt_tools.generation.prompts import chat_ids, prepare, template_of
from mt_train.assemble.load import end_tokens
from mt_train.config.data import DataConfig
from mt_train.data.media.writer import MediaTemplate, MediaWriter
from mt_train.data.templates import build_template
from mt_train.data.templates.days import ROW_DAY
from mt_train.generation.loaded_model import LoadedModel

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|> {{ m['content'] }} {{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TURNS = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello you"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = ["<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>", "be", "kind", "hello", "you"]
    inner = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    fast.add_special_tokens({"additional_special_tokens": words[3:6]})
    fast.chat_template = TEMPLATE
    path = tmp_path_factory.mktemp("chat")
    fast.save_pretrained(path)
    return path


def test_a_conversation_has_the_ids_of_apply_chat_template(loaded: LoadedModel, folder: Path) -> None:
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    expected = theirs.apply_chat_template(TURNS, add_generation_prompt=True, return_dict=False)
    ours = LoadedModel(loaded.model, build_huggingface(HuggingFaceConfig(path=str(folder))), 128)
    assert chat_ids(template_of(ours), TURNS) == expected
    assert expected[0] == theirs.bos_token_id
    assert expected.count(theirs.bos_token_id) == 1


DATED = "{{ strftime_now('%d %b %Y') }}: {% for m in messages %}{{ m['content'] }}{% endfor %}"


@pytest.mark.parametrize("form", ["of data.template", "of the tokenizer", "with places for media"])
def test_who_is_asked_hears_the_true_date_and_rows_have_their_own(
    loaded: LoadedModel, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_template_utils, "datetime", SimpleNamespace(now=lambda: datetime(2030, 1, 2)))
    tokenizer = build_byte(ByteConfig())
    tokenizer.chat_template = DATED
    own = form == "of the tokenizer"
    template = build_template(tokenizer, DataConfig() if own else DataConfig(template=DATED), day=ROW_DAY)
    if form == "with places for media":
        template = MediaTemplate(template, MediaWriter({}), tokenizer.encode)
    ours = LoadedModel(loaded.model, tokenizer, 128, template=template)
    turns = [*TURNS]
    assert tokenizer.decode(template.prompt(turns)).startswith("26 Jul 2024: ")
    asked = chat_ids(template_of(ours), turns)
    assert tokenizer.decode(asked.ids if isinstance(asked, Encoded) else asked).startswith("02 Jan 2030: ")
    assert tokenizer.decode(template.prompt(turns)).startswith("26 Jul 2024: "), "of rows, still"


def test_a_tokenizer_that_reads_no_special_tokens_gets_the_first_one_in_front(loaded: LoadedModel) -> None:
    for begin in ("{{ bos_token }}", ""):
        assert prompt_ids(loaded, begin + "{{ messages[1].content }}") == [256, *b"hello you"]


def prompt_ids(loaded: LoadedModel, template: str) -> list[int]:
    return chat_ids(template_of(loaded, template), TURNS)


def test_a_template_that_objects_or_is_broken_is_told_with_its_line(loaded: LoadedModel) -> None:
    with pytest.raises(UsageError, match="line 2, refuses this conversation: no system please"):
        prompt_ids(loaded, "{{ messages[0].content }}\n{{ raise_exception('no system please') }}")
    with pytest.raises(UsageError, match=r"line 3, fails: .* Mend it"):
        prompt_ids(loaded, "\n\n{% for %}")


def test_a_template_cannot_reach_out_of_its_sandbox(loaded: LoadedModel) -> None:
    with pytest.raises(UsageError, match="unsafe"):
        prompt_ids(loaded, "{{ messages.__class__.__mro__[1].__subclasses__() }}")


def test_a_conversation_with_a_run_is_written_as_the_run_was(loaded: LoadedModel) -> None:
    template = build_template(loaded.tokenizer, DataConfig(template="chatml", system="Be brief.", postfix=" /no_think"))
    trained = replace(loaded, template=template)
    assert bytes(chat_ids(template_of(trained), TURNS[1:])[1:]).decode() == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhello you /no_think<|im_end|>\n<|im_start|>assistant\n"
    )
    assert b"Be brief." not in bytes(chat_ids(template_of(trained), TURNS)[1:]), "the conversation has a system turn"
    assert prompt_ids(trained, "alpaca") == prompt_ids(loaded, "alpaca") != chat_ids(template_of(trained), TURNS)


def test_a_prompt_leaves_room_for_a_token(loaded: LoadedModel) -> None:
    assert prepare(loaded, "x" * 126) == [256, *b"x" * 126]
    with pytest.raises(UsageError, match="the prompt has 128 tokens, and the model takes 128"):
        prepare(loaded, "x" * 127)


def test_end_tokens_are_the_tokenizers_and_those_beside_the_weights(tmp_path: Path) -> None:
    tokenizer, file = build_byte(ByteConfig()), tmp_path / "generation_config.json"
    assert end_tokens(tokenizer, None, 260) == end_tokens(tokenizer, tmp_path, 260) == (257,)
    file.write_text(json.dumps({"eos_token_id": [257, 259]}))
    assert end_tokens(tokenizer, str(tmp_path), 260) == (257, 259)
    file.write_text(json.dumps({"eos_token_id": 3}))
    assert end_tokens(tokenizer, tmp_path, 260) == (257, 3)
    for bad, says in (
        ('{"eos_token_id": [999]}', "999, which is no id"),
        ("[", "not a JSON mapping"),
        ("[1]", "not a JSON"),
    ):
        file.write_text(bad)
        with pytest.raises(WeightsError, match=says):
            end_tokens(tokenizer, tmp_path, 260)


def test_ids_of_another_tokenizer_count_only_where_they_are_special_here(tmp_path: Path) -> None:
    """A run that began with weights and trains with another tokenizer: 97 was an end token there, and is a letter here."""
    tokenizer = build_byte(ByteConfig())
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [97, 256]}))
    assert end_tokens(tokenizer, tmp_path, 260) == (257, 97, 256)
    assert end_tokens(tokenizer, tmp_path, 260, own=False) == (257, 256)
