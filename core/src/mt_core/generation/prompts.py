"""From what a person gives to token ids: a text, or the messages of a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mt_core.errors import UsageError
from mt_core.generation.loaded import Loaded

Message = Mapping[str, str]
"""``role`` and ``content`` of one turn."""
Prompt = str | Sequence[Message]


def prepare(loaded: Loaded, prompt: Prompt, *, chat_template: str | None = None) -> list[int]:
    """Ids of a prompt, which leave room for one new token at least. Raises ``UsageError`` that says what is wrong."""
    ids = text_ids(loaded, prompt) if isinstance(prompt, str) else chat_ids(loaded, prompt, chat_template)
    if not ids:
        raise UsageError("the prompt has no tokens; give some text to continue, for instance --prompt 'The '")
    if len(ids) >= loaded.max_seq_len:
        raise UsageError(
            f"the prompt has {len(ids)} tokens, and the model takes {loaded.max_seq_len} with the new ones; shorten it"
        )
    return ids


def text_ids(loaded: Loaded, text: str) -> list[int]:
    """The token that begins a text, where there is one, and the text."""
    if not text:
        raise UsageError("the prompt is empty; give some text to continue, for instance --prompt 'The '")
    bos, ids = loaded.tokenizer.bos_id, loaded.tokenizer.encode(text)
    return ids if bos is None else [bos, *ids]


def chat_ids(loaded: Loaded, messages: Sequence[Message], chat_template: str | None = None) -> list[int]:
    """The conversation as the template writes it, up to where the assistant begins to speak.

    Equals ``apply_chat_template(add_generation_prompt=True)`` of transformers. A tokenizer that cannot read its special
    tokens in a text gets the token that begins one put in front.
    """
    special: Mapping[str, str] = getattr(loaded.tokenizer, "special_tokens", {})
    text = render(chat_template or own_template(loaded), messages, special)
    ids, bos = loaded.tokenizer.encode(text), loaded.tokenizer.bos_id
    return ids if bos is None or special else [bos, *ids]


def own_template(loaded: Loaded) -> str:
    """The tokenizer's chat template. Raises ``UsageError`` when it has none."""
    template: Any = loaded.tokenizer.chat_template
    if isinstance(template, Mapping):  # transformers keeps several under names
        template = template.get("default")
    if not isinstance(template, str):
        raise UsageError(
            "the tokenizer has no chat template, which says how turns are written down; give the model's own with"
            " --chat-template FILE (Jinja), or use --prompt for plain text"
        )
    return template


def render(template: str, messages: Sequence[Message], special_tokens: Mapping[str, str]) -> str:
    """The text of a conversation, by transformers' sandboxed Jinja. Raises ``UsageError`` when the template objects."""
    from jinja2.exceptions import TemplateError
    from transformers.utils.chat_template_utils import render_jinja_template

    names = {"bos_token": "", "eos_token": "", **special_tokens}
    plain = [dict(message) for message in messages]
    try:
        texts, _ = render_jinja_template([plain], chat_template=template, add_generation_prompt=True, **names)
    except (TemplateError, TypeError, ValueError) as error:  # a template may fail on what it finds in a message
        raise UsageError(
            f"the chat template refuses this conversation: {error}; see which roles and order it allows"
        ) from error
    return str(texts[0])


def read_template(path: Path) -> str:
    """A chat template's file. Raises ``UsageError`` when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read the chat template {path}: {error.strerror}; check --chat-template") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the chat template {path} is not UTF-8 (byte {error.start}); save it as UTF-8") from error
