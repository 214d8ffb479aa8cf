"""The date that templates write which write today's (``strftime_now``)."""

from __future__ import annotations

from datetime import date
from typing import Protocol, runtime_checkable

from mt_core.protocols import Template

ROW_DAY = date(2024, 7, 26)
"""Today in the rows of a run, so that they are the same on any day. It is the default of Llama 3.1's own template."""


@runtime_checkable
class DatedTemplate(Protocol):
    """A template that may write a date."""

    def of_today(self) -> Template:
        """Return the same template, which writes the true date: for a model that is asked."""
        ...
