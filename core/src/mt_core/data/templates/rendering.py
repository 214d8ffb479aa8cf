"""Jinja chat templates as transformers renders them, in its sandbox
(https://huggingface.co/docs/transformers/chat_templating)."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence

from mt_core.errors import DataError
from mt_core.protocols import Message

_FILE = "<template>"
"""What Jinja calls a template that came as a text."""


def render(
    source: str, messages: Sequence[Message], names: Mapping[str, str], *, name: str, speak: bool = False
) -> str:
    """The text of a conversation; ``speak`` adds what comes before the assistant's turn.

    ``names`` are the special tokens (``bos_token`` …). Raises ``DataError`` with the line where the template objects or is broken.
    """
    from transformers.utils.chat_template_utils import render_jinja_template  # with its imports half a second

    plain = [
        {key: value for key, value in message.items() if key not in ("train", "weight", "raw")} for message in messages
    ]
    try:
        texts, _ = render_jinja_template([plain], chat_template=source, add_generation_prompt=speak, **names)
    except Exception as error:  # a template is somebody's code, and may raise what it wants
        raise DataError(
            f"the chat template {name}{_line(error)} refuses this conversation: {error or type(error).__name__}; "
            "see which roles and order it allows, or choose another with --data.template"
        ) from error
    return str(texts[0])


def _line(error: Exception) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == _FILE]
    number = lines[-1] if lines else getattr(error, "lineno", None)
    return f", line {number}," if number else ""
