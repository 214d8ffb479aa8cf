"""Token ids of what a person gives: a text, or the messages of a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mt_core.data.text_ids import begin_ids
from mt_core.errors import DataError, UsageError
from mt_core.protocols import Template
from mt_train.config.sections import DataConfig
from mt_train.config.texts import template_source
from mt_train.data.templates import build_template
from mt_train.generation.continuation import check_room
from mt_train.generation.loaded_model import LoadedModel

Message = Mapping[str, str]
"""``role`` and ``content`` of one turn."""
Prompt = str | Sequence[Message]


def prepare(loaded: LoadedModel, prompt: Prompt, template: Template | None = None) -> list[int]:
    """Ids of a prompt, which leave room for one new token at least. Raises ``UsageError`` that says what is wrong."""
    ids = text_ids(loaded, prompt) if isinstance(prompt, str) else chat_ids(template or template_of(loaded), prompt)
    check_room(loaded, ids)
    return ids


def text_ids(loaded: LoadedModel, text: str) -> list[int]:
    """Return the ids of what the tokenizer puts in front of a text, and the text."""
    if not text:
        raise UsageError("the prompt is empty; give some text to continue, for instance --prompt 'The '")
    return [*begin_ids(loaded.tokenizer), *loaded.tokenizer.encode(text)]


def chat_ids(template: Template, messages: Sequence[Message]) -> list[int]:
    """The conversation as the template writes it, up to where the assistant begins to speak.

    Equals ``apply_chat_template(add_generation_prompt=True)`` of transformers for a tokenizer's own template.
    """
    try:
        return template.prompt(messages)
    except DataError as error:
        raise UsageError(str(error)) from error


def template_of(loaded: LoadedModel, chosen: str | None = None) -> Template:
    """The template of a conversation: the one chosen (a name, a file or Jinja text), the run's, or the tokenizer's own.

    Raises ``UsageError`` for a name that is not known.
    """
    if chosen is None:
        return loaded.template or build_template(loaded.tokenizer)
    try:
        source = template_source(chosen)
    except ValueError as error:
        raise UsageError(f"chat template: {error}") from error
    return build_template(loaded.tokenizer, DataConfig(template=source))
