"""Token ids of what a person gives: a text, or the messages of a conversation."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from mt_core.data.text_ids import begin_ids
from mt_core.errors import DataError, UsageError
from mt_core.protocols import Template
from mt_tools.generation.media import MediaText
from mt_train.config.data import DataConfig
from mt_train.config.texts import template_source
from mt_train.data.media.places import find_place
from mt_train.data.media.writer import MediaTemplate
from mt_train.data.templates import build_template
from mt_train.data.templates.days import DatedTemplate
from mt_train.generation.continuation import check_room
from mt_train.generation.loaded_model import LoadedModel
from mt_train.generation.request import PromptIds

Message = Mapping[str, Any]
"""``role`` and ``content`` of one turn, and its ``media``."""
Prompt = str | MediaText | Sequence[Message]


def prepare(loaded: LoadedModel, prompt: Prompt, template: Template | None = None) -> PromptIds:
    """Ids of a prompt, which leave room for one new token at least. Raises ``UsageError`` that says what is wrong."""
    _refuse_places(prompt, loaded.media_kinds)
    ids: PromptIds
    if isinstance(prompt, MediaText):
        ids = media_ids(loaded, prompt)
    elif isinstance(prompt, str):
        ids = text_ids(loaded, prompt)
    else:
        ids = chat_ids(template or template_of(loaded), prompt)
    check_room(loaded, ids)
    return ids


def _refuse_places(prompt: Prompt, kinds: Collection[str]) -> None:
    """Raise ``UsageError`` for a place of media that nothing is given for; what is given has marks in its place by now."""
    if kind := find_place(prompt.text if isinstance(prompt, MediaText) else prompt, kinds):
        option = "--image FILE" if kind == "image" else f"--media {kind}="
        raise UsageError(
            f"the prompt has <{kind}>, and nothing is given for it; name what it stands for ({option} of mt-generate, or the field"
            f" {kind}s of a file of --prompts), or write the text without it"
        )


def media_ids(loaded: LoadedModel, prompt: MediaText) -> PromptIds:
    """Return the ids of a text with media. Raises ``UsageError`` for a file that cannot be read."""
    if not prompt.parts:
        return text_ids(loaded, prompt.text)
    assert isinstance(loaded.template, MediaTemplate), "whoever marks a text has looked whether the model has encoders"
    try:
        return loaded.template.encode_text(prompt.text, prompt.parts, begin=begin_ids(loaded.tokenizer), end=())
    except DataError as error:
        raise UsageError(str(error)) from error


def text_ids(loaded: LoadedModel, text: str) -> list[int]:
    """Return the ids of a text with the tokenizer's begin ids. A text that spells the begin token gets no second one."""
    if not text:
        raise UsageError("the prompt is empty; give some text to continue, for instance --prompt 'The '")
    begin, ids = begin_ids(loaded.tokenizer), loaded.tokenizer.encode(text)
    return ids if begin and tuple(ids[: len(begin)]) == begin else [*begin, *ids]


def chat_ids(template: Template, messages: Sequence[Message]) -> PromptIds:
    """Return the ids of a conversation, up to the point where the assistant's answer begins.

    Equals ``apply_chat_template(add_generation_prompt=True)`` of transformers for a tokenizer's own template.
    """
    try:
        return template.encode_prompt(messages) if isinstance(template, MediaTemplate) else template.prompt(messages)
    except DataError as error:
        raise UsageError(str(error)) from error


def template_of(loaded: LoadedModel, chosen: str | None = None) -> Template:
    """Return the chat template: the chosen one (a name, a file or Jinja text), the run's, or the tokenizer's.

    One that writes today's date writes the true one, where rows of a run have a day of their own (``ROW_DAY``).
    Raises ``UsageError`` for a name that is not known.
    """
    if chosen is None:
        own = loaded.template or build_template(loaded.tokenizer)
        return own.of_today() if isinstance(own, DatedTemplate) else own
    try:
        source = template_source(chosen)
    except ValueError as error:
        raise UsageError(f"chat template: {error}") from error
    has_media = isinstance(loaded.template, MediaTemplate)
    template = build_template(loaded.tokenizer, DataConfig(template=source), media=has_media)
    return loaded.template.over(template) if isinstance(loaded.template, MediaTemplate) else template
