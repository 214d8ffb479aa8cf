"""The chat template of an exported folder: one that gives the prompts which the run had."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mt_core.errors import DataError
from mt_core.protocols import Template, Tokenizer
from mt_core.rows import Message
from mt_core.weights import read_json
from mt_tools.convert.tokenizer_files import TOKENIZER_CONFIG, Say
from mt_tools.convert.writing import write_json
from mt_train.config.data import DataConfig
from mt_train.config.texts import PLAIN
from mt_train.data.templates import build_template, jinja_source

FILE = "chat_template.jinja"
_BEGIN = "{{- bos_token }}"
_PLAIN = (
    "{%- for message in messages %}{{- message['content'] }}"
    "{%- if message['role'] == 'assistant' %}{{- eos_token }}{%- endif %}{%- endfor %}"
)
_USER, _ASSISTANT = {"role": "user", "content": "Where is Paris?"}, {"role": "assistant", "content": "In France."}
_CONVERSATIONS: tuple[list[Message], ...] = (
    [_USER],
    [_USER, _ASSISTANT, {"role": "user", "content": "And Rome?"}],
    [{"role": "system", "content": "Be brief."}, _USER],
)


def write_template(
    folder: Path,
    tokenizer: Tokenizer,
    theirs: Any,
    config: DataConfig,
    say: Say,
    *,
    media: tuple[str, str] | None = None,
) -> None:
    """Write the run's template into the folder, with what ``data.system``, ``data.prefix`` and ``data.postfix`` put into conversations.

    ``media`` are a type of parts that turns may have beside texts, and what is written for one.

    ``theirs`` is the folder's tokenizer as transformers opened it (``None`` where it could not). The begin token that the run puts in
    front of a text which has none is written into the template; where prompts still differ, that is told.
    """
    source = _PLAIN if config.template == PLAIN else jinja_source(tokenizer, config)
    if source is None:
        return
    text, template = _with_additions(source, config), build_template(tokenizer, config)
    text = text if media is None else _with_parts(text, *media)
    if theirs is not None:
        prompts = list(_prompts(template))
        fitting = (each for each in (text, _BEGIN + text) if all(_ids(theirs, each, *one) == one[1] for one in prompts))
        found = next(fitting, None)
        if found is None:
            say(
                "warning: apply_chat_template of transformers gives other ids with the exported chat template than the prompts of the run;"
                " check a conversation before you serve the folder"
            )
        text = found or text
    (folder / FILE).write_text(text, encoding="utf-8")
    if (folder / TOKENIZER_CONFIG).is_file():  # where older releases of vLLM, and llama.cpp, look for it
        write_json(folder / TOKENIZER_CONFIG, {**read_json(folder / TOKENIZER_CONFIG), "chat_template": text})


def _prompts(template: Template) -> Iterator[tuple[list[Message], list[int]]]:
    """Conversations that the template takes, and the ids that the run has for them."""
    for messages in _CONVERSATIONS:
        try:
            yield messages, list(template.prompt(messages))
        except DataError:
            continue  # a template without a system turn, for one


def _ids(theirs: Any, text: str, messages: Sequence[Message], expected: Sequence[int]) -> list[int] | None:
    """Ids of the conversation by transformers; ``None`` where the template fails there."""
    try:
        found = theirs.apply_chat_template(
            list(messages), chat_template=text, add_generation_prompt=True, tokenize=True, return_dict=False
        )
    except Exception:  # noqa: BLE001 - a template is somebody's code, and may raise what it wants
        return None
    return list(found)


def _with_parts(source: str, kind: str, spelled: str) -> str:
    """The template for turns that are lists of parts, as processors of transformers take them."""
    kind, spelled = (json.dumps(each, ensure_ascii=False) for each in (kind, spelled))
    return "\n".join(
        [
            "{%- set whole = namespace(turns=[], text='') %}",
            "{%- for message in messages %}",
            "{%- if message['content'] is string or message['content'] is not iterable %}",
            "{%- set whole.turns = whole.turns + [message] %}",
            "{%- else %}",
            "{%- set whole.text = '' %}",
            "{%- for part in message['content'] %}",
            f"{{%- set whole.text = whole.text + ({spelled} if part['type'] == {kind} else part['text']) %}}",
            "{%- endfor %}",
            "{%- set whole.turns = whole.turns + [dict(message, content=whole.text)] %}",
            "{%- endif %}",
            "{%- endfor %}",
            "{%- set messages = whole.turns %}",
            source,
        ]
    )


def _with_additions(source: str, config: DataConfig) -> str:
    """The template with what the run puts into every conversation."""
    if not (config.system or config.prefix or config.postfix):
        return source
    system, prefix, postfix = (
        json.dumps(each or "", ensure_ascii=False) for each in (config.system, config.prefix, config.postfix)
    )
    around = f"dict(message, content={prefix} + message['content'] + {postfix})"
    return "\n".join(
        [
            "{%- set added = namespace(turns=[]) %}",
            f"{{%- if {system} and (not messages or messages[0]['role'] != 'system') %}}",
            f"{{%- set added.turns = [{{'role': 'system', 'content': {system}}}] %}}",
            "{%- endif %}",
            "{%- for message in messages %}",
            "{%- if message['role'] == 'user' and message['content'] is string %}",
            f"{{%- set added.turns = added.turns + [{around}] %}}",
            "{%- else %}",
            "{%- set added.turns = added.turns + [message] %}",
            "{%- endif %}",
            "{%- endfor %}",
            "{%- set messages = added.turns %}",
            source,
        ]
    )


def read_template(folder: Path) -> str | None:
    """Return the chat template of a folder, of several the one that is named ``default``; ``None`` where it has none.

    Newer releases of transformers write a file of its own, older ones ``tokenizer_config.json``, and those of processors
    ``chat_template.json``.
    """
    if (folder / FILE).is_file():
        return (folder / FILE).read_text(encoding="utf-8")
    for name in (TOKENIZER_CONFIG, "chat_template.json"):
        given = read_json(folder / name).get("chat_template") if (folder / name).is_file() else None
        if isinstance(given, list):
            given = next((each.get("template") for each in given if each.get("name") == "default"), None)
        if isinstance(given, str):
            return given
    return None
