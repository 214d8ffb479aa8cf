"""Conversations as texts, which is how lm-evaluation-harness wants them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mt_core import UsageError
from mt_core.evaluation import Subject

Message = Mapping[str, str]


def chat_text(subject: Subject, messages: Sequence[Message], *, speak: bool) -> str:
    """Write a conversation by the run's template, up to where the assistant speaks, or (not ``speak``) goes on with its last turn.

    Raises ``UsageError`` where the tokenizer would read the text as other ids than the template gives.
    """
    turns = [dict(message) for message in messages]
    if speak:
        return _spell(subject, subject.template.prompt(turns))
    text, last = _spell(subject, subject.template.encode(turns).ids), turns[-1]["content"].strip()
    at = text.rfind(last)
    if at < 0:
        raise UsageError(f"the run's template does not write the answer {last[:60]!r} as it stands; set chat to false")
    return text[: at + len(last)]


def _spell(subject: Subject, ids: Sequence[int]) -> str:
    show = getattr(subject.tokenizer, "show", None)
    if show is None:
        raise UsageError(
            f"{type(subject.tokenizer).__name__} cannot spell special tokens in a text, and lm-evaluation-harness asks with texts;"
            " set chat to false, or take a Hugging Face tokenizer"
        )
    text = str(show(ids))
    if list(subject.tokenizer.encode(text)) != list(ids):
        raise UsageError(
            "the tokenizer reads the run's template back as other tokens than the run trains on, so that lm-evaluation-harness would"
            f" ask something else: {text[:80]!r}; set chat to false"
        )
    return text
