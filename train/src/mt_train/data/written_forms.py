"""Forms in which rows are written where ``data.template`` is not given: a prompt and a response as plain text, all others in turns."""

from __future__ import annotations

from mt_core import Row
from mt_core.data.shapes import is_conversation

_TURNS = ("system", "history", "instruction", "messages", "conversations")
"""Fields whose turns are in no plain text; empty ones say nothing."""

_EITHER = ("prompt", "response", "chosen", "rejected")
"""Fields that are a text, or turns."""


def is_plain(row: Row) -> bool | None:
    """Return whether a conversation is written as plain text; ``None`` for a row that is none.

    It tells by the fields what the turns' ``raw`` says, in a tenth of the time.
    """
    if row.get("input_ids") is not None or not is_conversation(row):
        return None
    return not any(row.get(name) for name in _TURNS) and not any(
        isinstance(row.get(name), list | dict) for name in _EITHER
    )
